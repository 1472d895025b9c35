//! A connection's socket, which is closed when its client stalls or has gone.

use crate::{limits::LINGER, options::Options};
use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep},
};

/// Number of answers that a connection computes or writes: more than one only if requests are
/// pipelined.
#[derive(Clone, Default)]
pub struct Answers(Arc<AtomicUsize>);

/// An answer that is computed or written.
pub struct Answering(Answers);

impl Answers {
    pub fn begin(&self) -> Answering {
        self.0.fetch_add(1, Ordering::Relaxed);
        Answering(self.clone())
    }

    pub fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A deadline that runs only now and then.
struct Deadline {
    after: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Deadline {
    fn new(after: Duration) -> Self {
        Self { after, sleep: None }
    }

    /// Starts unless it runs, and is ready when it has passed.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.sleep.get_or_insert_with(|| Box::pin(sleep(self.after))).as_mut().poll(cx)
    }

    fn is_running(&self) -> bool {
        self.sleep.is_some()
    }

    fn stop(&mut self) {
        self.sleep = None;
    }

    /// Begins again if it runs.
    fn extend(&mut self) {
        if let Some(sleep) = &mut self.sleep {
            sleep.as_mut().reset(Instant::now() + self.after);
        }
    }
}

pub struct Socket {
    stream: TcpStream,
    answers: Answers,
    /// Runs while a write waits.
    stall: Deadline,
    /// Runs from the end of the client's side on, while there are answers. hyper takes that end for
    /// the client's leaving, so it is told later.
    half_closed: Deadline,
    /// Runs from the end of this side on.
    linger: Deadline,
}

impl Socket {
    pub fn new(stream: TcpStream, answers: Answers, options: &Options) -> Self {
        let [stall, half_closed, linger] =
            [options.write_timeout, options.half_closed_timeout, LINGER].map(Deadline::new);
        Self { stream, answers, stall, half_closed, linger }
    }

    /// Returns the result of a write: an error if the client has not read for too long.
    fn written<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_pending() {
            ready!(self.stall.poll(cx));
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client does not read its answer",
            )));
        }
        self.stall.stop();
        self.half_closed.extend();
        written
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.half_closed.is_running() {
            let before = buf.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
            if buf.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
        }
        // The end of the client's side. hyper asks again when an answer has ended.
        if this.answers.any() {
            ready!(this.half_closed.poll(cx));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.written(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    /// Ends this side, and drops what still comes, for a while: closed before, a socket with unread
    /// input takes the answer back.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.linger.is_running() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        }
        let mut bytes = [0; 4096];
        loop {
            if this.linger.poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut buf = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut this.stream).poll_read(cx, &mut buf));
            if read.is_err() || buf.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
