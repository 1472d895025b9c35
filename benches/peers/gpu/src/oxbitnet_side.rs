//! oxbitnet's side, by what it makes public: its BitLinear, which quantizes `f32` to 8 bits and
//! multiplies, on a device of its own (wgpu 26) of the same adapter. A call makes the buffers and
//! bind groups that the crate makes for it.

use oxbitnet::{
    gpu::{BufferPool, PipelineManager, buffer_pool::GpuBuf},
    nn::bitlinear::BitLinear,
};
use pollster::block_on;
use std::sync::Arc;
use wgpu_26::{self as wgpu, BufferUsages, util::DeviceExt};

const PER_SUBMISSION: usize = 16;

pub struct OxBitNet {
    device: Arc<wgpu::Device>,
    queue: wgpu::Queue,
    pipelines: PipelineManager,
    pool: BufferPool,
}

/// A layer's product: copies of its weights that take turns, and what they are multiplied with.
pub struct Product {
    layers: Vec<BitLinear>,
    x: GpuBuf,
    tokens: usize,
    rows: usize,
}

impl OxBitNet {
    /// On the adapter of this name.
    pub fn open(adapter: &str) -> Self {
        let instance = wgpu::Instance::new(&wgpu::InstanceDescriptor { backends: wgpu::Backends::VULKAN, ..Default::default() });
        let found = instance.enumerate_adapters(wgpu::Backends::VULKAN).into_iter().find(|found| found.get_info().name == adapter);
        let found = found.unwrap_or_else(|| panic!("wgpu 26 has no adapter {adapter:?}"));
        let clock = wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS;
        let (device, queue) = block_on(found.request_device(&wgpu::DeviceDescriptor {
            label: Some("oxbitnet"),
            required_features: found.features() & clock,
            required_limits: found.limits(),
            ..Default::default()
        }))
        .expect("a device");
        let device = Arc::new(device);
        // 256 as in its `BitNetModel::build`.
        Self { pipelines: PipelineManager::new(device.clone()), pool: BufferPool::new(device.clone(), 256), device, queue }
    }

    /// `x` `[tokens, columns]` times this many copies of the ternary `values` `[rows, columns]`.
    pub fn product(&self, values: &[i8], rows: usize, scale: f32, x: &[f32], tokens: usize, copies: usize) -> Product {
        let columns = values.len() / rows;
        let buffer = |bytes: &[u8]| {
            let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
            Arc::new(self.device.create_buffer_init(&wgpu::util::BufferInitDescriptor { label: None, contents: bytes, usage }))
        };
        let (packed, scales) = (i2_s(values), bytes(&vec![scale; rows]));
        let layer = |_| BitLinear::new(self.device.clone(), buffer(&packed), buffer(&scales), None, columns, rows);
        Product { layers: (0..copies).map(layer).collect(), x: buffer(&bytes(x)), tokens, rows }
    }

    fn record(&mut self, product: &mut Product, calls: std::ops::Range<usize>, encoder: &mut wgpu::CommandEncoder) -> Option<GpuBuf> {
        let Product { layers, x, tokens, .. } = product;
        let copies = layers.len();
        calls.map(|i| layers[i % copies].forward(x, *tokens, encoder, &mut self.pipelines, &self.pool)).last()
    }

    fn wait(&self) {
        self.device.poll(wgpu::PollType::Wait).expect("it ends");
    }

    pub fn compute(&mut self, product: &mut Product, calls: usize) {
        for first in (0..calls).step_by(PER_SUBMISSION) {
            let mut encoder = self.device.create_command_encoder(&Default::default());
            self.record(product, first..(first + PER_SUBMISSION).min(calls), &mut encoder);
            self.queue.submit([encoder.finish()]);
        }
        self.wait();
    }

    /// Seconds of a call by the GPU's clock, if it has one; of all copies in one submission.
    pub fn gpu_time(&mut self, product: &mut Product) -> Option<f64> {
        if !self.device.features().contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS) {
            return None;
        }
        let descriptor = wgpu::QuerySetDescriptor { label: None, ty: wgpu::QueryType::Timestamp, count: 2 };
        let queries = self.device.create_query_set(&descriptor);
        let copies = product.layers.len();
        let once = |ox: &mut Self, product: &mut Product| {
            let mut encoder = ox.device.create_command_encoder(&Default::default());
            encoder.write_timestamp(&queries, 0);
            ox.record(product, 0..copies, &mut encoder);
            encoder.write_timestamp(&queries, 1);
            let usage = BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC;
            let ticks = ox.device.create_buffer(&wgpu::BufferDescriptor { label: None, size: 16, usage, mapped_at_creation: false });
            encoder.resolve_query_set(&queries, 0..2, &ticks, 0);
            let read = ox.read(encoder, &ticks, 16);
            let [start, end] = [0, 8].map(|at| u64::from_le_bytes(read[at..at + 8].try_into().expect("eight bytes")));
            (end - start) as f64 * f64::from(ox.queue.get_timestamp_period()) / 1e9 / copies as f64
        };
        (0..3).map(|_| once(self, product)).min_by(f64::total_cmp)
    }

    /// What one call gives, `[tokens, rows]`.
    pub fn result(&mut self, product: &mut Product) -> Vec<f32> {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let y = self.record(product, 0..1, &mut encoder).expect("one call");
        let read = self.read(encoder, &y, 4 * (product.tokens * product.rows) as u64);
        read.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four"))).collect()
    }

    /// The bytes of a buffer after what `encoder` has.
    fn read(&self, mut encoder: wgpu::CommandEncoder, buffer: &wgpu::Buffer, size: u64) -> Vec<u8> {
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let host = self.device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false });
        encoder.copy_buffer_to_buffer(buffer, 0, &host, 0, size);
        self.queue.submit([encoder.finish()]);
        host.slice(..).map_async(wgpu::MapMode::Read, |mapped| mapped.expect("it can be read"));
        self.wait();
        host.slice(..).get_mapped_range().to_vec()
    }
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// bitnet.cpp's packing for x86, which oxbitnet reads: byte i of 32 has elements i, i + 32, i + 64
/// and i + 96 of 128, the first in the high bits.
fn i2_s(values: &[i8]) -> Vec<u8> {
    let code = |block: &[i8], i: usize, group: usize| ((block[i + 32 * group] + 1) as u8) << (6 - 2 * group);
    values.chunks_exact(128).flat_map(|block| (0..32).map(move |i| (0..4).fold(0, |byte, group| byte | code(block, i, group)))).collect()
}
