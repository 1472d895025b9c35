//! Typed arrays on the GPU.

use crate::{Context, Error, Result, Shape, pool::Pooled, readback};
use std::{fmt, future::Future, marker::PhantomData, sync::Arc};

/// The element types a [`Tensor`] can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// 32-bit float.
    F32,
    /// 16-bit float ([`half::f16`]); kernels on it need the adapter's `SHADER_F16`.
    F16,
    /// 8-bit integers, four to a word in shaders.
    I8,
    /// 32-bit unsigned integer.
    U32,
    /// 32-bit signed integer.
    I32,
}

mod sealed {
    /// Sizes of bindings follow from the element, so other crates cannot add types.
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for i8 {}
    impl Sealed for u32 {}
    impl Sealed for i32 {}
}

/// A host type that is an [`Element`].
pub trait ElementType: sealed::Sealed + bytemuck::Pod + Send + Sync {
    /// Which one.
    const ELEMENT: Element;
}
impl ElementType for f32 {
    const ELEMENT: Element = Element::F32;
}
impl ElementType for half::f16 {
    const ELEMENT: Element = Element::F16;
}
impl ElementType for i8 {
    const ELEMENT: Element = Element::I8;
}
impl ElementType for u32 {
    const ELEMENT: Element = Element::U32;
}
impl ElementType for i32 {
    const ELEMENT: Element = Element::I32;
}

/// The float types that activations and outputs may have: `f32` and [`half::f16`].
pub trait Float: ElementType + Into<f32> {
    /// The nearest value of this type, ties to even.
    fn from_f32(value: f32) -> Self;
}
impl Float for f32 {
    fn from_f32(value: f32) -> Self {
        value
    }
}
impl Float for half::f16 {
    fn from_f32(value: f32) -> Self {
        half::f16::from_f32(value)
    }
}

/// A row-major array on the GPU. Clones share the buffer, which goes back to the context's pool with the last of them.
#[derive(Clone)]
pub struct Tensor<T> {
    context: Context,
    buffer: Arc<Pooled>,
    /// What a binding of it covers.
    bytes: u64,
    shape: Shape,
    element: PhantomData<T>,
}

const STORAGE: wgpu::BufferUsages = wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

impl<T: ElementType> Tensor<T> {
    /// A tensor with whatever its buffer last held: for outputs that a kernel writes in full.
    pub fn uninit(context: &Context, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        let bytes = byte_size::<T>(shape)?;
        let limit = context.capabilities().max_binding_bytes;
        if bytes > limit {
            return Err(Error::TooLarge { what: format!("a tensor of shape {shape}"), bytes, limit });
        }
        let buffer = context.allocate(bytes, STORAGE, "tensor")?;
        Ok(Self { context: context.clone(), buffer, bytes, shape, element: PhantomData })
    }

    /// A tensor of zeros.
    pub fn zeros(context: &Context, shape: impl Into<Shape>) -> Result<Self> {
        let tensor = Self::uninit(context, shape)?;
        context.clear(&tensor.buffer)?;
        Ok(tensor)
    }

    pub(crate) fn upload(context: &Context, data: &[T], shape: Shape) -> Result<Self> {
        if shape.checked_len() != Some(data.len()) {
            return Err(Error::Length { shape, found: data.len() });
        }
        let tensor = Self::uninit(context, shape)?;
        context.write(&tensor.buffer, bytemuck::cast_slice(data))?;
        Ok(tensor)
    }

    /// Overwrites the contents. Takes effect before anything that is submitted later, recorded work included.
    ///
    /// # Errors
    /// [`Error::Length`] if `data` does not fill the shape.
    pub fn write(&self, data: &[T]) -> Result<()> {
        if data.len() != self.len() {
            return Err(Error::Length { shape: self.shape, found: data.len() });
        }
        self.context.write(&self.buffer, bytemuck::cast_slice(data))
    }

    /// Copies the contents back. The copy is submitted at once, after all work submitted before; the future can be awaited
    /// on any executor, or dropped.
    pub fn read(&self) -> impl Future<Output = Result<Vec<T>>> + Send + use<T> {
        self.read_after("readback", &|_| {})
    }

    /// [`Tensor::read`] in one submission with the work that `record` puts before the copy.
    pub(crate) fn read_after(
        &self,
        label: &'static str,
        record: &dyn Fn(&mut wgpu::CommandEncoder),
    ) -> impl Future<Output = Result<Vec<T>>> + Send + use<T> {
        let len = self.len();
        let bytes = readback::read_after(&self.context, label, record, &self.buffer, (len * size_of::<T>()) as u64);
        async move {
            match bytes.await? {
                Some(staging) => staging.to_vec(len),
                None => Ok(Vec::new()),
            }
        }
    }

    /// The same data under another shape of as many elements.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if shape.checked_len() != Some(self.len()) {
            return Err(Error::Length { shape, found: self.len() });
        }
        Ok(Self { shape, ..self.clone() })
    }
}

impl<T> Tensor<T> {
    /// The dimensions, outermost first.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// How many elements.
    pub fn len(&self) -> usize {
        self.shape.dims().iter().product()
    }

    /// Is it without elements?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The context whose device holds it.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl<T: ElementType> fmt::Debug for Tensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor<{:?}>{}", T::ELEMENT, self.shape)
    }
}

/// Bytes of a binding: whole words, and never less than the largest element that a shader may see in it (`vec4<u32>`).
fn byte_size<T>(shape: Shape) -> Result<u64> {
    let bytes = shape.checked_len().and_then(|len| len.checked_mul(size_of::<T>()));
    let words = bytes.and_then(|bytes| (bytes as u64).checked_next_multiple_of(4));
    let overflow = || Error::TooLarge { what: format!("a tensor of shape {shape}"), bytes: u64::MAX, limit: u64::MAX - 1 };
    words.map(|bytes| bytes.max(16)).ok_or_else(overflow)
}

/// What an [`Encoder`](crate::Encoder) can bind: a tensor of any element type.
pub trait Bind {
    #[doc(hidden)]
    fn bound(&self) -> Bound<'_>;
}

#[doc(hidden)]
pub struct Bound<'a> {
    pub(crate) context: &'a Context,
    pub(crate) buffer: &'a Arc<Pooled>,
    pub(crate) bytes: u64,
    pub(crate) element: Element,
}

impl<'a> Bound<'a> {
    /// The number that [`Dispatch::buffers`](crate::Dispatch::buffers) gives its buffer.
    pub fn id(&self) -> usize {
        Arc::as_ptr(self.buffer).addr()
    }

    /// The element type.
    pub fn element(&self) -> Element {
        self.element
    }

    pub(crate) fn resource(&self) -> wgpu::BindingResource<'a> {
        let size = wgpu::BufferSize::new(self.bytes);
        wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer: self.buffer, offset: 0, size })
    }
}

impl<T: ElementType> Bind for Tensor<T> {
    fn bound(&self) -> Bound<'_> {
        Bound { context: &self.context, buffer: &self.buffer, bytes: self.bytes, element: T::ELEMENT }
    }
}
