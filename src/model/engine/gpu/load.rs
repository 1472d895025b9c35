//! A model's weights on their way to a GPU: which of them stay on the host, and what that takes.

use super::{
    graph::GpuModel,
    offload::{SLOTS, Streamed, slot_for},
};
use crate::{
    error::Result,
    formats::ModelConfig,
    gpu::{context::Context, host_staging},
    memory::Footprint,
    model::engine::{
        interface::{SessionOptions, unchosen},
        layers::{GpuEnds, HostEnds, HostLayer, LayerKinds},
        offload::Offload,
    },
};

/// Bytes of a model's weights.
struct Bytes {
    ends: u64,
    /// Of a layer, on the device.
    vectors: u64,
    matrices: u64,
    /// Of a layer, in host memory.
    host_bytes: u64,
    layers: u64,
}

impl Bytes {
    /// Of this many layers, and the ends that they need.
    fn of(
        context: &Context,
        (ends, which): (&HostEnds, (bool, bool)),
        layer: &HostLayer,
        layers: usize,
    ) -> Result<Self> {
        let planned = |upload: &dyn Fn(&Context) -> Result<()>| {
            let (context, plan) = context.with_label(Footprint::WEIGHTS).planning();
            upload(&context).map(|()| plan.bytes(Footprint::WEIGHTS))
        };
        let matrices = layer.matrices();
        let host_bytes = matrices
            .iter()
            .map(|matrix| 4 * (matrix.words().len() + matrix.row_scales().len()) as u64)
            .sum();
        let all = planned(&|context| layer.upload(context).map(drop))?;
        let matrices = planned(&|context| slot_for(context, layer).map(drop))?;
        let ends = planned(&|context| ends.upload(context, which).map(drop))?;
        Ok(Self { ends, vectors: all - matrices, matrices, host_bytes, layers: layers as u64 })
    }

    /// With this many layers offloaded.
    fn with(&self, offloaded: usize) -> Footprint {
        let resident = (self.layers - offloaded as u64).saturating_add(offloaded.min(SLOTS) as u64);
        let layers = self
            .vectors
            .saturating_mul(self.layers)
            .saturating_add(self.matrices.saturating_mul(resident));
        let host = self.host_bytes.saturating_mul(offloaded as u64);
        Footprint { weights: self.ends.saturating_add(layers), host, ..Footprint::default() }
    }
}

impl GpuModel {
    /// Uploads the weights, layer by layer as they come, or keeps them in host memory, as `offload`
    /// says; with the attention of prompts in f16, or not. `kinds` reads a layer of each kind.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`](crate::Error::MemoryLimit) before anything is uploaded, where they
    /// will not fit: layers are taken to be as large as the first of their kind. Those of
    /// [`GpuModel::weights`] and [`Streamed::take`].
    pub fn new(
        context: &Context,
        config: ModelConfig,
        host: HostEnds,
        layers: impl Iterator<Item = Result<HostLayer>>,
        kinds: impl FnOnce() -> Result<LayerKinds>,
        (offload, f16_attention): (Offload, bool),
    ) -> Result<Self> {
        let count = config.layers;
        let mut offloaded = if let Offload::Layers(count) = offload { count } else { 0 };
        // What it takes to know is done only where it matters.
        if context.memory_stats().limit.is_some() || matches!(offload, Offload::Auto(_)) {
            let footprint;
            (offloaded, footprint) =
                Self::weights(context, &config, &host, &kinds()?, (offload, f16_attention))?;
            context.check_room(footprint.weights, || match offloaded {
                0 => "a model's weights".into(),
                _ => format!("a model's weights, {offloaded} of {count} layers apart"),
            })?;
        }
        let weights = context.with_label(Footprint::WEIGHTS);
        let ends = host.upload(&weights, (true, true))?;
        // An embedding is large: it need not stay while layers are read.
        drop(host);
        let mut streamed = Streamed::default();
        let place = |(index, layer): (usize, Result<HostLayer>)| {
            let layer = layer?;
            streamed
                .take(&weights, index, &layer, (offloaded, count))?
                .map_or_else(|| layer.upload(&weights), Ok)
        };
        let layers = layers.enumerate().map(place).collect::<Result<_>>()?;
        Ok(Self::of(context, config, ends, layers, streamed)?.f16_attention(f16_attention))
    }

    /// How many layers of a model of such ends and kinds of layers are offloaded, and what its
    /// weights take then.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`] where [`Offload::Auto`] finds that offloading all will not do;
    /// [`Error::Invalid`], [`Error::Context`] for its options.
    pub fn weights(
        context: &Context,
        config: &ModelConfig,
        ends: &HostEnds,
        kinds: &[(HostLayer, usize)],
        (offload, f16_attention): (Offload, bool),
    ) -> Result<(usize, Footprint)> {
        let [(layer, of_kind), others @ ..] = kinds else { return Err(unchosen()) };
        let bytes = Bytes::of(context, (ends, (true, true)), layer, *of_kind)?;
        let count = match offload {
            Offload::None => 0,
            Offload::Layers(count) => count,
            Offload::Auto(options) => {
                let session =
                    Self::session_of(context, config, ends, layer, f16_attention, options)?.total();
                let needed = |count| bytes.with(count).weights.saturating_add(session);
                let stats = context.memory_stats();
                let fits = |&count: &usize| {
                    stats
                        .limit
                        .is_none_or(|limit| stats.live_bytes.saturating_add(needed(count)) <= limit)
                };
                match (0..=config.layers).find(fits) {
                    Some(count) => count,
                    None => {
                        let what =
                            || "a model's weights with all layers offloaded, and a session".into();
                        context.check_room(needed(config.layers), what)?;
                        config.layers
                    }
                }
            }
        };
        if count > 0 {
            host_staging::check(context)?;
        }
        // Where there are several kinds, no layer is offloaded.
        let of_others = others.iter().map(|(layer, of_kind)| {
            Self::part_weights(context, (ends, (false, false)), layer, *of_kind)
        });
        let all = of_others.collect::<Result<Vec<_>>>()?;
        Ok((count, all.into_iter().fold(bytes.with(count), Footprint::and)))
    }

    /// What the weights of a part take that is this many layers, and the ends that they need.
    pub fn part_weights(
        context: &Context,
        ends: (&HostEnds, (bool, bool)),
        layer: &HostLayer,
        layers: usize,
    ) -> Result<Footprint> {
        Ok(Bytes::of(context, ends, layer, layers)?.with(0))
    }

    /// Uploads the layers of a part, all that come, whose ends are there; with the attention of
    /// prompts in f16, or not.
    ///
    /// # Errors
    /// What the layers report, and the device.
    pub fn part(
        context: &Context,
        config: ModelConfig,
        ends: GpuEnds,
        layers: impl Iterator<Item = Result<HostLayer>>,
        f16_attention: bool,
    ) -> Result<Self> {
        let weights = context.with_label(Footprint::WEIGHTS);
        let layers = layers.map(|layer| layer?.upload(&weights)).collect::<Result<_>>()?;
        Ok(Self::of(context, config, ends, layers, Streamed::default())?
            .f16_attention(f16_attention))
    }

    /// What a session of a model of such ends and layers takes.
    fn session_of(
        context: &Context,
        config: &ModelConfig,
        ends: &HostEnds,
        layer: &HostLayer,
        f16_attention: bool,
        options: SessionOptions,
    ) -> Result<Footprint> {
        let (context, _) = context.planning();
        let layers = (0..config.layers).map(|_| layer.upload(&context)).collect::<Result<_>>()?;
        let model = Self::of(
            &context,
            config.clone(),
            ends.upload(&context, (true, true))?,
            layers,
            Streamed::default(),
        )?;
        let model = model.f16_attention(f16_attention);
        model.footprint(options.checked(&model)?)
    }
}
