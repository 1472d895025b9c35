//! wgpu's complaints as errors.

use crate::error::{Error, Result};

/// Runs `work` and returns wgpu's complaints about it as an error; by default they panic.
pub fn guarded<R>(
    device: &wgpu::Device,
    during: impl FnOnce() -> String,
    work: impl FnOnce() -> R,
) -> Result<R> {
    match complaint(device, work) {
        (result, None) => Ok(result),
        (_, Some(_)) if is_lost(device) => Err(Error::DeviceLost { during: during() }),
        (_, Some(error)) => Err(typed(during(), &error)),
    }
}

/// Returns whether the device is lost. wgpu says so to the app's callback only; but it no longer
/// complains about what is made on it then, not even about this.
pub fn is_lost(device: &wgpu::Device) -> bool {
    let wrong = wgpu::BufferDescriptor {
        label: None,
        size: u64::MAX,
        usage: wgpu::BufferUsages::STORAGE,
        mapped_at_creation: false,
    };
    complaint(device, || device.create_buffer(&wrong)).1.is_none()
}

/// Runs `work`; gives wgpu's first complaint about it too.
fn complaint<R>(device: &wgpu::Device, work: impl FnOnce() -> R) -> (R, Option<wgpu::Error>) {
    let filters = [
        wgpu::ErrorFilter::Validation,
        wgpu::ErrorFilter::OutOfMemory,
        wgpu::ErrorFilter::Internal,
    ];
    let scopes = filters.map(|filter| device.push_error_scope(filter));
    let result = work();
    let mut first = None;
    for scope in scopes.into_iter().rev() {
        first = first.or(now(scope.pop()).flatten());
    }
    (result, first)
}

fn typed(during: String, error: &wgpu::Error) -> Error {
    let message = error.to_string();
    match error {
        wgpu::Error::OutOfMemory { .. } => Error::OutOfMemory { during, message, live: Vec::new() },
        _ => Error::Gpu { during, message },
    }
}

/// The result of a future that is complete from the start, as those of error scopes are on native
/// backends.
fn now<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_distinguished() {
        let source = || Box::<dyn std::error::Error + Send + Sync>::from("why");
        assert!(matches!(
            typed("work".into(), &wgpu::Error::OutOfMemory { source: source() }),
            Error::OutOfMemory { .. }
        ));
        let internal = wgpu::Error::Internal { source: source(), description: "words".into() };
        assert!(
            matches!(typed("work".into(), &internal), Error::Gpu { message, .. } if message.contains("words"))
        );
    }
}
