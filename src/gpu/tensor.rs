//! Typed arrays on the GPU.

use super::{
    context::Context,
    execute::submissions::SubmissionPart,
    memory::pool::Pooled,
    transfer::{mapping, readback, upload::UploadStream},
};
use crate::{
    element::{Element, ElementType},
    error::{Error, Result},
    shape::Shape,
};
use std::{
    collections::VecDeque, fmt, future::Future, marker::PhantomData, ops::Range, pin::Pin,
    sync::Arc,
};

/// This many bytes are uploaded with the next submission, which is faster
/// (docs/guide/gpu-and-memory.md); more by submissions of their own.
const FEW: usize = 4 << 20;

/// This many bytes, where the host may write them to where they stay.
const IN_PLACE: u64 = 64 << 10;

pub(super) const UNWRITTEN: &str = "nothing that was submitted has written this tensor: submit the encoder or recording that does, or create it by `Tensor::zeros` or `Context::upload`";

/// Chunks of a tensor that are on their way to the host.
const PIECES: usize = 2;

/// A row-major array on the GPU, of up to four dimensions. Clones share the buffer, which returns to
/// the context's pool when the last of them is dropped.
///
/// ```
/// # fn main() -> bitnet_wgpu::Result<()> {
/// use bitnet_wgpu::{Context, Tensor};
///
/// let context = pollster::block_on(Context::new())?;
/// let x = context.upload(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
/// let zeros = Tensor::<f32>::zeros(&context, [2, 2])?;
/// assert_eq!(pollster::block_on(x.reshape([4])?.read())?, [1.0, 2.0, 3.0, 4.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tensor<T> {
    context: Context,
    buffer: Arc<Pooled>,
    /// What a binding of it covers.
    bytes: u64,
    shape: Shape,
    element: PhantomData<T>,
}

/// How the buffer of a tensor is used.
fn usage(context: &Context) -> wgpu::BufferUsages {
    let mapped = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::MAP_WRITE;
    if context.capabilities().maps_in_place { STORAGE | mapped } else { STORAGE }
}

const STORAGE: wgpu::BufferUsages = wgpu::BufferUsages::STORAGE
    .union(wgpu::BufferUsages::COPY_SRC)
    .union(wgpu::BufferUsages::COPY_DST);

impl<T: ElementType> Tensor<T> {
    /// Returns a tensor with undefined contents, for outputs that a kernel writes in full.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for more than the device can bind; [`Error::MemoryLimit`] and
    /// [`Error::OutOfMemory`], which list what is live.
    pub fn uninit(context: &Context, shape: impl Into<Shape>) -> Result<Self> {
        Self::of_usage(context, shape.into(), usage(context))
    }

    fn of_usage(context: &Context, shape: Shape, usage: wgpu::BufferUsages) -> Result<Self> {
        let bytes = bindable::<T>(context, shape)?;
        let buffer = context.allocate_tensor(bytes, usage)?;
        Ok(Self { context: context.clone(), buffer, bytes, shape, element: PhantomData })
    }

    /// One to be filled, and whether it is mapped for that: then by [`Tensor::filled`], or else in
    /// any way.
    fn to_fill(context: &Context, shape: Shape) -> Result<(Self, bool)> {
        let in_place = context.capabilities().writes_in_place
            && context.plan().is_none()
            && byte_size::<T>(shape)? >= IN_PLACE;
        if !in_place {
            return Ok((Self::uninit(context, shape)?, false));
        }
        let usage = usage(context) | wgpu::BufferUsages::MAP_WRITE;
        let tensor = Self::of_usage(context, shape, usage)?;
        let mapped = mapping::map_idle(context, &tensor.buffer)?;
        Ok((tensor, mapped))
    }

    /// The tensor, with what comes in chunks.
    fn filled(
        self,
        mapped: bool,
        chunks: impl IntoIterator<Item = impl AsRef<[T]>>,
    ) -> Result<Self> {
        let (len, mut found) = (self.len(), 0usize);
        let mut upload =
            UploadStream::new(&self.context, &self.buffer, mapped, len * size_of::<T>());
        for chunk in chunks {
            let chunk = chunk.as_ref();
            found = found.saturating_add(chunk.len());
            if found > len {
                break;
            }
            upload.push(bytemuck::cast_slice(chunk))?;
        }
        if found != len {
            return Err(Error::Length { shape: self.shape, found });
        }
        upload.flush()?;
        drop(upload);
        self.buffer.mark_written();
        Ok(self)
    }

    /// Returns a tensor in an app's own buffer, from its first byte on, without a copy. The buffer
    /// never enters the pool.
    ///
    /// The buffer needs the usage `STORAGE`; [`Tensor::read`] also needs `COPY_SRC`, and
    /// [`Tensor::write`] needs `COPY_DST`. It must belong to the context's device and
    /// [`wgpu::Instance`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for a buffer that is too small (elements are padded to whole words, and
    /// to 16 bytes at least) or lacks the usage; [`Error::TooLarge`] for more than the device can
    /// bind; [`Error::Gpu`] for a buffer of another device.
    pub fn from_buffer(
        context: &Context,
        buffer: wgpu::Buffer,
        shape: impl Into<Shape>,
    ) -> Result<Self> {
        let shape = shape.into();
        let bytes = bindable::<T>(context, shape)?;
        let invalid = |what| Err(Error::Invalid { op: "from_buffer", what });
        if buffer.size() < bytes {
            return invalid(format!(
                "a tensor of shape {shape} takes {bytes} bytes; the buffer has {}",
                buffer.size()
            ));
        }
        if !buffer.usage().contains(wgpu::BufferUsages::STORAGE) {
            return invalid("the buffer's usage has no STORAGE".into());
        }
        context.check_own(&buffer)?;
        Ok(Self {
            context: context.clone(),
            buffer: Arc::new(Pooled::foreign(buffer)),
            bytes,
            shape,
            element: PhantomData,
        })
    }

    /// Returns a tensor of zeros.
    ///
    /// # Errors
    /// As [`Tensor::uninit`].
    pub fn zeros(context: &Context, shape: impl Into<Shape>) -> Result<Self> {
        let tensor = Self::uninit(context, shape)?;
        context.clear(&tensor.buffer)?;
        Ok(tensor)
    }

    /// Overwrites the contents, before any work that is submitted later, including work that is
    /// recorded already.
    ///
    /// # Errors
    /// [`Error::Length`] if `data` does not fill the shape.
    pub fn write(&self, data: &[T]) -> Result<()> {
        if data.len() != self.len() {
            return Err(Error::Length { shape: self.shape, found: data.len() });
        }
        self.context.write(&self.buffer, 0, bytemuck::cast_slice(data))
    }

    /// Overwrites one row of a matrix of 32-bit elements, as [`Tensor::write`] does all.
    #[cfg(feature = "models")]
    pub(crate) fn write_row(&self, row: usize, data: &[T]) -> Result<()> {
        const { assert!(size_of::<T>() == 4) };
        let (rows, columns) = self.shape.as_matrix();
        if row >= rows || data.len() != columns {
            return Err(Error::Length { shape: self.shape, found: data.len() });
        }
        self.context.write(
            &self.buffer,
            (row * columns * size_of::<T>()) as u64,
            bytemuck::cast_slice(data),
        )
    }

    /// Copies the contents back. The copy is submitted at once, after all work submitted before;
    /// the future can be awaited on any executor, or dropped.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a tensor that nothing has written yet: it was made by
    /// [`Tensor::uninit`] or as an output, and the recording that writes it was not submitted. What
    /// the device reports.
    pub fn read(&self) -> impl Future<Output = Result<Vec<T>>> + Send + use<T> {
        self.read_after("readback", &[])
    }

    /// Copies the contents back in chunks of `len` elements (rounded up to whole words; the last
    /// may have fewer), so that the host need not have room for all: two chunks are on their way
    /// while the caller has another. Each is what the tensor has when it is asked for: what is
    /// submitted meanwhile and writes to it is seen by later chunks.
    ///
    /// ```
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// # let context = pollster::block_on(bitnet_wgpu::Context::new())?;
    /// # let x = context.upload(&[1.0f32; 1000], [1000])?;
    /// let (mut chunks, mut sum) = (x.read_chunks(300), 0.0);
    /// while let Some(chunk) = pollster::block_on(chunks.next()) {
    ///     sum += chunk?.iter().sum::<f32>(); // of 300, 300, 300 and 100
    /// }
    /// assert_eq!(sum, 1000.0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_chunks(&self, len: usize) -> Chunks<T> {
        // Copies begin at whole words.
        let len = len.clamp(1, self.len().max(1)).next_multiple_of(4 / size_of::<T>().min(4));
        Chunks { tensor: self.clone(), len, next: 0, coming: VecDeque::new() }
    }

    /// [`Tensor::read`] after parts of a recording, in one submission with the last of them.
    pub(super) fn read_after(
        &self,
        label: &'static str,
        parts: &[SubmissionPart<'_>],
    ) -> impl Future<Output = Result<Vec<T>>> + Send + use<T> {
        self.read_range(label, parts, 0..self.len())
    }

    /// Reads some elements, of which the first begins a word.
    fn read_range(
        &self,
        label: &'static str,
        parts: &[SubmissionPart<'_>],
        elements: Range<usize>,
    ) -> impl Future<Output = Result<Vec<T>>> + Send + use<T> {
        let (len, size) = (elements.len(), size_of::<T>());
        let source = (&**self.buffer, (elements.start * size) as u64);
        let submitted = self.buffer.check_unmapped("read").map(|()| {
            readback::read_after(&self.context, label, parts, source, (len * size) as u64)
        });
        // The parts have been submitted: what they write is marked.
        let written = self.buffer.is_written() || len == 0;
        async move {
            if !written {
                return Err(Error::Invalid { op: "read", what: UNWRITTEN.into() });
            }
            match submitted?.await? {
                Some(staging) => staging.to_vec(len),
                None => Ok(Vec::new()),
            }
        }
    }

    /// Returns a copy in a buffer of its own, made on the device.
    ///
    /// # Errors
    /// What the device reports.
    pub fn duplicate(&self) -> Result<Self> {
        self.buffer.check_unmapped("duplicate")?;
        let copy = Self::uninit(&self.context, self.shape)?;
        copy.buffer.mark_written();
        self.context.submit_with("copy", |commands| {
            commands.encoder.copy_buffer_to_buffer(&self.buffer, 0, &copy.buffer, 0, self.bytes)
        })?;
        Ok(copy)
    }

    /// Copies the n-th part of a tensor, of as many as its first dimension says, over one of
    /// another: for each of these pairs, in one submission.
    ///
    /// # Errors
    /// [`Error::Length`] for parts of different sizes, or that do not exist.
    #[cfg(feature = "models")]
    pub(crate) fn copy_parts(pairs: &[[(&Self, usize); 2]]) -> Result<()> {
        let Some([(first, _), _]) = pairs.first() else { return Ok(()) };
        let part = |tensor: &Self| {
            let parts = tensor.shape.dims().first().copied().unwrap_or(0);
            (parts, tensor.len() / parts.max(1) * size_of::<T>())
        };
        for [(from, n), (to, m)] in pairs {
            let ((parts, bytes), (others, same)) = (part(from), part(to));
            if bytes != same || *n >= parts || *m >= others {
                return Err(Error::Length { shape: to.shape, found: from.len() });
            }
        }
        let at = |(tensor, n): (&Self, usize)| (part(tensor).1 * n) as u64;
        let copied = first.context.submit_with("copy", |commands| {
            for &[from, to] in pairs {
                let bytes = part(from.0).1 as u64;
                let (source, target) = (&from.0.buffer, &to.0.buffer);
                target.mark_written();
                commands.encoder.copy_buffer_to_buffer(source, at(from), target, at(to), bytes);
            }
        });
        copied.map(drop)
    }

    /// Returns the tensor with its words as elements of another type.
    pub(crate) fn cast<U: ElementType>(&self) -> Tensor<U> {
        const { assert!(size_of::<T>() == size_of::<U>()) };
        let Self { context, buffer, bytes, shape, .. } = self.clone();
        Tensor { context, buffer, bytes, shape, element: PhantomData }
    }

    /// Its first elements, under another shape: of no more elements, in the same buffer.
    pub(crate) fn beginning(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if shape.checked_len().is_none_or(|len| len > self.len()) {
            return Err(Error::Length { shape, found: self.len() });
        }
        Ok(Self { shape, ..self.clone() })
    }

    /// Returns the tensor with another shape of as many elements, in the same memory.
    ///
    /// # Errors
    /// [`Error::Length`] for a shape of more or fewer elements.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if shape.checked_len() != Some(self.len()) {
            return Err(Error::Length { shape, found: self.len() });
        }
        Ok(Self { shape, ..self.clone() })
    }
}

impl<T> Tensor<T> {
    /// Returns the dimensions, outermost first.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.shape.dims().iter().product()
    }

    /// Returns whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the buffer, for an app's own work on the same device. It may be larger than the tensor:
    /// see [`Tensor::binding`]. Keep the tensor until that work is submitted, since its buffer is
    /// reused afterwards.
    pub fn buffer(&self) -> &wgpu::Buffer {
        // The app may write to it.
        self.buffer.mark_written();
        &self.buffer
    }

    /// Returns the buffer as a storage binding of the tensor's size, padded to whole words and to at
    /// least 16 bytes.
    pub fn binding(&self) -> wgpu::BindingResource<'_> {
        // The app may write to it.
        self.buffer.mark_written();
        let size = wgpu::BufferSize::new(self.bytes);
        wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer: &self.buffer, offset: 0, size })
    }

    /// In whose memory it is.
    #[cfg(feature = "internals")]
    pub fn residency(&self) -> Residency {
        let shared = self
            .buffer
            .usage()
            .intersects(wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::MAP_READ);
        if shared { Residency::Shared } else { Residency::Device }
    }

    /// Returns the context whose device holds it.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl Context {
    /// Copies `data` into a new tensor.
    ///
    /// # Errors
    /// [`Error::Length`] if `data` does not fill `shape`, [`Error::TooLarge`] if the device cannot
    /// bind that much.
    pub fn upload<T: ElementType>(&self, data: &[T], shape: impl Into<Shape>) -> Result<Tensor<T>> {
        let shape = shape.into();
        if shape.checked_len() != Some(data.len()) {
            return Err(Error::Length { shape, found: data.len() });
        }
        let (tensor, mapped) = Tensor::to_fill(self, shape)?;
        if mapped || size_of_val(data) > FEW {
            return tensor.filled(mapped, [data]);
        }
        self.write(&tensor.buffer, 0, bytemuck::cast_slice(data))?;
        Ok(tensor)
    }

    /// Copies what comes in chunks, of any lengths, into a new tensor: of a file, say, that is
    /// larger than the host's memory. The device copies what has come while the host has the next
    /// chunks, through 4 MB of staging memory at most, however much there is. Where memory is the
    /// processor's too (`Residency::Shared`) and idle, chunks are written to where they stay.
    ///
    /// ```
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// # let context = pollster::block_on(bitnet_wgpu::Context::new())?;
    /// let rows = (0..1000).map(|row| [row as f32; 64]); // made, or read, one after another
    /// let x = context.upload_chunks(rows, [1000, 64])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Context::upload`].
    pub fn upload_chunks<T: ElementType>(
        &self,
        chunks: impl IntoIterator<Item = impl AsRef<[T]>>,
        shape: impl Into<Shape>,
    ) -> Result<Tensor<T>> {
        let (tensor, mapped) = Tensor::to_fill(self, shape.into())?;
        tensor.filled(mapped, chunks)
    }
}

/// Whose memory a tensor is in: [`Tensor::residency`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Residency {
    /// The device's. On Metal it is storage of the mode `private`.
    Device,
    /// The device's and the processor's (`shared` on Metal). All tensors have it where
    /// `Capabilities::maps_in_place` says so, and uploads of 64 KiB and more where
    /// `Capabilities::writes_in_place` does: the processor writes them itself. So have an app's own
    /// buffers that can be mapped.
    Shared,
}

/// Reads a tensor in chunks, of which the next are copied ahead: see [`Tensor::read_chunks`].
pub struct Chunks<T> {
    tensor: Tensor<T>,
    /// Elements of a chunk.
    len: usize,
    /// The first element that is not on its way.
    next: usize,
    coming: VecDeque<Piece<T>>,
}

type Piece<T> = Pin<Box<dyn Future<Output = Result<Vec<T>>> + Send>>;

impl<T: ElementType> Chunks<T> {
    /// Returns the next chunk; `None` after the last. If the future is dropped, the next call returns
    /// that chunk.
    ///
    /// # Errors
    /// As [`Tensor::read`].
    pub async fn next(&mut self) -> Option<Result<Vec<T>>> {
        self.send_for();
        // It stays there until it has come: a call that is dropped half-way loses no chunk.
        let chunk = self.coming.front_mut()?.await;
        self.coming.pop_front();
        // While the caller has this one.
        self.send_for();
        Some(chunk)
    }

    /// Has as many on their way as there may be.
    fn send_for(&mut self) {
        while self.coming.len() < PIECES && self.next < self.tensor.len() {
            let end = self.tensor.len().min(self.next.saturating_add(self.len));
            self.coming.push_back(Box::pin(self.tensor.read_range(
                "readback",
                &[],
                self.next..end,
            )));
            self.next = end;
        }
    }
}

impl<T: ElementType> fmt::Debug for Tensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor<{:?}>{}", T::ELEMENT, self.shape)
    }
}

/// [`byte_size`], if the device can bind so much.
fn bindable<T>(context: &Context, shape: Shape) -> Result<u64> {
    let (bytes, limit) = (byte_size::<T>(shape)?, context.capabilities().max_binding_bytes);
    if bytes > limit {
        return Err(Error::TooLarge { what: format!("a tensor of shape {shape}"), bytes, limit });
    }
    Ok(bytes)
}

/// Bytes of a binding: whole words, and never less than the largest element that a shader may see
/// in it (`vec4<u32>`).
fn byte_size<T>(shape: Shape) -> Result<u64> {
    let bytes = shape.checked_len().and_then(|len| len.checked_mul(size_of::<T>()));
    let words = bytes.and_then(|bytes| (bytes as u64).checked_next_multiple_of(4));
    let overflow = || Error::TooLarge {
        what: format!("a tensor of shape {shape}"),
        bytes: u64::MAX,
        limit: u64::MAX - 1,
    };
    words.map(|bytes| bytes.max(16)).ok_or_else(overflow)
}

/// What an [`Encoder`](crate::Encoder) can bind: a tensor of any element type.
pub trait Bind {
    #[doc(hidden)]
    fn bound(&self) -> Bound<'_>;
}

#[doc(hidden)]
pub struct Bound<'a> {
    pub(super) context: &'a Context,
    pub(super) buffer: &'a Arc<Pooled>,
    pub(super) bytes: u64,
    pub(super) element: Element,
}

impl<'a> Bound<'a> {
    /// The number of its buffer, as `Dispatch::buffers` gives it.
    pub fn id(&self) -> usize {
        self.buffer.id()
    }

    /// The type of its elements.
    pub fn element(&self) -> Element {
        self.element
    }
}

impl<T: ElementType> Bind for Tensor<T> {
    fn bound(&self) -> Bound<'_> {
        Bound {
            context: &self.context,
            buffer: &self.buffer,
            bytes: self.bytes,
            element: T::ELEMENT,
        }
    }
}

/// Up to [`Shape::MAX_RANK`] dimensions. (It is here since `shape` cannot import errors.)
impl TryFrom<&[usize]> for Shape {
    type Error = Error;

    fn try_from(dims: &[usize]) -> Result<Self> {
        if dims.len() <= Self::MAX_RANK {
            return Ok(Self::of(dims));
        }
        let what = format!("{} dimensions; a tensor has up to {}", dims.len(), Self::MAX_RANK);
        Err(Error::Invalid { op: "shape", what })
    }
}
