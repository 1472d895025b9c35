//! Tensors as slices of the processor's.

use super::{
    tensor::{Bind as _, Tensor, UNWRITTEN},
    transfer::mapping::Mapping,
};
use crate::{
    element::ElementType,
    error::{Error, Result},
};
use wgpu::{BufferUsages, MapMode};

impl<T: ElementType> Tensor<T> {
    /// Calls `read` with the contents, in place where the processor and the device share memory
    /// (Apple GPUs, software adapters), and with a copy elsewhere. It waits for the work that was
    /// submitted before the future is first polled.
    ///
    /// Until the future is done or dropped, other work on the tensor or its clones is refused:
    /// [`Error::Invalid`] if it is recorded by this crate, and wgpu's error for an app's own.
    ///
    /// ```
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// use bitnet_wgpu::{Context, tensor};
    ///
    /// let context = pollster::block_on(Context::new())?;
    /// let x = context.upload(&[1.0f32, -2.0, 3.0], [3])?;
    /// let mut encoder = context.encoder("relu²");
    /// let y = tensor::relu2(&x).forward(&mut encoder)?;
    /// encoder.submit()?;
    /// let sum = pollster::block_on(y.map(|y| y.iter().sum::<f32>()))?;
    /// assert_eq!(sum, 10.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a tensor that nothing has written, or that is mapped already; as
    /// [`Tensor::read`].
    pub async fn map<R>(&self, read: impl FnOnce(&[T]) -> R) -> Result<R> {
        if !self.is_mappable(BufferUsages::MAP_READ) {
            return Ok(read(&self.read().await?));
        }
        if !self.bound().buffer.is_written() {
            return Err(Error::Invalid { op: "map", what: UNWRITTEN.into() });
        }
        self.mapping(MapMode::Read).await?.read(self.len(), read)
    }

    /// Calls `write` with the contents, to change them in place, as [`Tensor::map`] reads them.
    /// Elsewhere it gets a copy, which is written back. Of a tensor that nothing has written, the
    /// contents are arbitrary. Work that is submitted later sees what was written.
    ///
    /// ```
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// # let context = pollster::block_on(bitnet_wgpu::Context::new())?;
    /// let x = bitnet_wgpu::Tensor::<f32>::uninit(&context, [1000])?;
    /// pollster::block_on(x.map_mut(|x| x.fill(0.5)))?;
    /// pollster::block_on(x.map_mut(|x| x[0] *= 4.0))?;
    /// assert_eq!(pollster::block_on(x.read())?[..2], [2.0, 0.5]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a tensor that is mapped already; as [`Tensor::read`] and
    /// [`Tensor::write`].
    pub async fn map_mut<R>(&self, write: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        if self.is_mappable(BufferUsages::MAP_WRITE | BufferUsages::MAP_READ) {
            return self.mapping(MapMode::Write).await?.write(self.len(), write);
        }
        let mut data = match self.bound().buffer.is_written() {
            true => self.read().await?,
            false => vec![T::zeroed(); self.len()],
        };
        let result = write(&mut data);
        self.write(&data)?;
        Ok(result)
    }

    async fn mapping(&self, mode: MapMode) -> Result<Mapping> {
        let bound = self.bound();
        Mapping::of(bound.context, bound.buffer, bound.bytes, mode).await
    }

    fn is_mappable(&self, usage: BufferUsages) -> bool {
        self.bound().buffer.usage().contains(usage) && !self.is_empty()
    }
}
