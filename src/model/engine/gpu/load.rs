//! A model's weights on their way to a GPU: which of them stay on the host, and what that takes.

use super::{
    graph::GpuModel,
    offload::{SLOTS, Streamed, is_offloaded, slot_bytes},
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
use std::ops::Range;

/// Bytes of a model's weights.
struct Bytes {
    ends: u64,
    /// Of a slot for offloaded layers.
    slot: u64,
    kinds: Vec<KindBytes>,
}

/// Bytes of layers of one kind.
struct KindBytes {
    /// Of a layer, on the device.
    vectors: u64,
    matrices: u64,
    /// Of a layer, in host memory.
    host_bytes: u64,
    /// Which layers these are.
    layers: Vec<usize>,
}

impl Bytes {
    /// Of these of a model's layers, and the ends that they need.
    fn of(
        context: &Context,
        (ends, which): (&HostEnds, (bool, bool)),
        kinds: &LayerKinds,
        layers: Range<usize>,
    ) -> Result<Self> {
        let of_kind = |(layer, own): &(HostLayer, Vec<usize>)| {
            let matrices = slot_bytes(context, &[layer])?;
            let host = layer.matrices().into_iter();
            let host = host.map(|matrix| matrix.words().len() + matrix.row_scales().len());
            let all = planned(context, |context| layer.upload(context).map(drop))?;
            Ok(KindBytes {
                vectors: all - matrices,
                matrices,
                host_bytes: host.map(|words| 4 * words as u64).sum(),
                layers: own.iter().copied().filter(|layer| layers.contains(layer)).collect(),
            })
        };
        let all: Vec<&HostLayer> = kinds.iter().map(|(layer, _)| layer).collect();
        Ok(Self {
            ends: planned(context, |context| ends.upload(context, which).map(drop))?,
            slot: slot_bytes(context, &all)?,
            kinds: kinds.iter().map(of_kind).collect::<Result<_>>()?,
        })
    }

    /// With this many of all layers offloaded.
    fn with(&self, offloaded: usize) -> Footprint {
        let count = self.kinds.iter().map(|kind| kind.layers.len()).sum();
        let slots = self.slot.saturating_mul(offloaded.min(SLOTS) as u64);
        let ends = Footprint { weights: self.ends.saturating_add(slots), ..Footprint::default() };
        self.kinds.iter().fold(ends, |sum, kind| {
            let away = |layer: &&usize| is_offloaded(**layer, offloaded, count);
            let (all, away) =
                (kind.layers.len() as u64, kind.layers.iter().filter(away).count() as u64);
            let vectors = kind.vectors.saturating_mul(all);
            let weights = vectors.saturating_add(kind.matrices.saturating_mul(all - away));
            let host = kind.host_bytes.saturating_mul(away);
            sum.and(Footprint { weights, host, ..Footprint::default() })
        })
    }
}

/// The bytes of weights that something uploads.
fn planned(context: &Context, upload: impl Fn(&Context) -> Result<()>) -> Result<u64> {
    let (context, plan) = context.with_label(Footprint::WEIGHTS).planning();
    upload(&context).map(|()| plan.bytes(Footprint::WEIGHTS))
}

impl GpuModel {
    /// Uploads the weights, layer by layer as they come, or keeps them in host memory, as `offload`
    /// says; with the attention of prompts in f16, or not. `kinds` reads a layer of each kind.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`](crate::Error::MemoryLimit) before anything is uploaded, where they
    /// will not fit: layers are taken to be as large as the first of their kind. Those of
    /// [`GpuModel::weights`], [`Streamed::new`] and [`Streamed::take`].
    pub fn new(
        context: &Context,
        config: ModelConfig,
        host: HostEnds,
        layers: impl Iterator<Item = Result<HostLayer>>,
        kinds: impl FnOnce() -> Result<LayerKinds>,
        (offload, f16_attention): (Offload, bool),
    ) -> Result<Self> {
        let (count, weights) = (config.layers, context.with_label(Footprint::WEIGHTS));
        let mut streamed = Streamed::default();
        // What it takes to know is done only where it matters.
        if context.memory_stats().limit.is_some() || offload != Offload::None {
            let kinds = kinds()?;
            let (offloaded, footprint) =
                Self::weights(context, &config, &host, &kinds, (offload, f16_attention))?;
            context.check_room(footprint.weights, || match offloaded {
                0 => "a model's weights".into(),
                _ => format!("a model's weights, {offloaded} of {count} layers apart"),
            })?;
            streamed = Streamed::new(&weights, &kinds, (offloaded, count))?;
        }
        let ends = host.upload(&weights, (true, true))?;
        // An embedding is large: it need not stay while layers are read.
        drop(host);
        let place = |(index, layer): (usize, Result<HostLayer>)| {
            let layer = layer?;
            streamed.take(&weights, index, &layer)?.map_or_else(|| layer.upload(&weights), Ok)
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
        kinds: &LayerKinds,
        (offload, f16_attention): (Offload, bool),
    ) -> Result<(usize, Footprint)> {
        let bytes = Bytes::of(context, (ends, (true, true)), kinds, 0..config.layers)?;
        let count = match offload {
            Offload::None => 0,
            Offload::Layers(count) => count,
            Offload::Auto(options) => {
                let session =
                    Self::session_of(context, config, ends, kinds, f16_attention, options)?.total();
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
        Ok((count, bytes.with(count)))
    }

    /// What the weights of a part take that is these layers, and the ends that they need.
    pub fn part_weights(
        context: &Context,
        ends: (&HostEnds, (bool, bool)),
        kinds: &LayerKinds,
        layers: Range<usize>,
    ) -> Result<Footprint> {
        Ok(Bytes::of(context, ends, kinds, layers)?.with(0))
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
        kinds: &LayerKinds,
        f16_attention: bool,
        options: SessionOptions,
    ) -> Result<Footprint> {
        let (context, _) = context.planning();
        let kind = |n: usize| kinds.iter().find(|(_, of_kind)| of_kind.contains(&n));
        let layer = |n: usize| kind(n).ok_or_else(unchosen)?.0.upload(&context);
        let layers = (0..config.layers).map(layer).collect::<Result<_>>()?;
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
