//! Layers whose matrices stay in host memory. Two slots on the device hold the one that is computed
//! and the next, which is copied meanwhile: all of it is recorded, so that steps are submitted
//! ahead, and again, as others are. A slot has room for a layer of each kind.

use crate::{
    error::{Error, Result},
    gpu::{
        context::Context,
        encoder::Encoder,
        host_staging::{Hosted, Upload},
        tensor::Tensor,
    },
    memory::Footprint,
    model::engine::{
        interface::Offloaded,
        layers::{GpuLayer, HostLayer, LayerKinds},
    },
    weights::ternary::{matrix::TernaryMatrix, packed::PackedTernary},
};
use std::{
    cell::{Cell, RefCell},
    sync::Arc,
};

/// How many layers are on the device at a time, of those that are offloaded.
pub(super) const SLOTS: usize = 2;

/// The offloaded layers of a model, and where they are computed.
#[derive(Default)]
pub(super) struct Streamed {
    slots: Vec<Slot>,
    /// Which layers there are of each kind.
    kinds: Vec<Vec<usize>>,
    /// How many layers are offloaded, and how many there are.
    counts: (usize, usize),
    /// By their order: which layer, and its copies.
    layers: Vec<(usize, Arc<Vec<Hosted>>)>,
}

/// The matrices of a layer of each kind, in the same memory.
struct Slot(Vec<Vec<TernaryMatrix>>);

/// Returns whether this layer is one of the `offloaded` of all `layers`. They are spread evenly:
/// one is copied while those before it are computed.
pub(super) fn is_offloaded(layer: usize, offloaded: usize, layers: usize) -> bool {
    (layer + 1) * offloaded / layers > layer * offloaded / layers
}

impl Streamed {
    /// Takes memory for layers of these kinds, `offloaded` of all `layers` of which stay on the
    /// host.
    pub fn new(
        context: &Context,
        kinds: &LayerKinds,
        (offloaded, layers): (usize, usize),
    ) -> Result<Self> {
        let of_kinds: Vec<&HostLayer> = kinds.iter().map(|(layer, _)| layer).collect();
        let slots = (0..offloaded.min(SLOTS)).map(|_| slot_for(context, &of_kinds));
        Ok(Self {
            slots: slots.collect::<Result<_>>()?,
            kinds: kinds.iter().map(|(_, of_kind)| of_kind.clone()).collect(),
            counts: (offloaded, layers),
            layers: Vec::new(),
        })
    }

    /// Has a layer stay on the host, if it is among those that do: its vectors are on the device,
    /// its matrices are those of a slot.
    pub fn take(
        &mut self,
        context: &Context,
        index: usize,
        layer: &HostLayer,
    ) -> Result<Option<GpuLayer>> {
        let (offloaded, layers) = self.counts;
        let kind = self.kinds.iter().position(|of_kind| of_kind.contains(&index));
        let Some(kind) = kind.filter(|_| is_offloaded(index, offloaded, layers)) else {
            return Ok(None);
        };
        let slot = &self.slots[self.layers.len() % SLOTS].0[kind];
        let (next, copies) = (Cell::new(0), RefCell::new(Vec::new()));
        let hosted = layer.try_map(
            |matrix| {
                let place = &slot[next.replace(next.get() + 1)];
                check_form(index, matrix, place)?;
                let (codes, scales) = (bytemuck::cast_slice(matrix.words()), matrix.row_scales());
                copies.borrow_mut().push(Hosted::new(context, codes, &place.codes)?);
                copies.borrow_mut().push(Hosted::new(
                    context,
                    bytemuck::cast_slice(&scales),
                    &place.scales,
                )?);
                Ok(place.clone())
            },
            |gains| context.upload(gains, [gains.len()]),
        )?;
        self.layers.push((index, Arc::new(copies.into_inner())));
        Ok(Some(hosted))
    }

    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Records the copies of the first layers, before all of them.
    pub fn begin(&self, encoder: &mut Encoder) {
        (0..SLOTS).for_each(|n| self.copy(encoder, n));
    }

    /// Records the copies into the slot that this layer, which is recorded, has left.
    pub fn after(&self, encoder: &mut Encoder, layer: usize) {
        if let Some(n) = self.layers.iter().position(|&(index, _)| index == layer) {
            self.copy(encoder, n + SLOTS);
        }
    }

    /// Records the copies of one layer, by itself.
    pub fn only(&self, encoder: &mut Encoder, layer: usize) {
        self.layers
            .iter()
            .filter(|&&(index, _)| index == layer)
            .for_each(|(_, copies)| encoder.upload(Upload { ready: None, copies: copies.clone() }));
    }

    fn copy(&self, encoder: &mut Encoder, n: usize) {
        let of = |n: usize| self.layers.get(n).map(|(_, copies)| copies.clone());
        if let Some(copies) = of(n) {
            encoder.upload(Upload { ready: n.checked_sub(1).and_then(of), copies });
        }
    }

    pub fn offloaded(&self) -> Offloaded {
        let copies = self.layers.iter().flat_map(|(_, copies)| copies.iter());
        Offloaded { layers: self.layers.len(), bytes: copies.map(Hosted::bytes).sum() }
    }
}

/// Checks that a matrix of a layer has the form of those in its place.
fn check_form(index: usize, matrix: &PackedTernary, place: &TernaryMatrix) -> Result<()> {
    let form = (place.rows(), place.columns(), place.group());
    if form == (matrix.rows(), matrix.columns(), matrix.group()) {
        return Ok(());
    }
    let scales = |group: Option<usize>| match group {
        Some(columns) => format!("scales for groups of {columns} columns"),
        None => "scales without groups".into(),
    };
    let what = format!(
        "layer {index} has {}, another has {}",
        scales(matrix.group()),
        scales(place.group())
    );
    Err(Error::Invalid {
        op: "offload",
        what: format!("{what}: such layers cannot take turns in memory"),
    })
}

/// Matrices of the forms of each of these layers, not filled: the n-th of all layers are in the same
/// memory.
fn slot_for(context: &Context, kinds: &[&HostLayer]) -> Result<Slot> {
    let kinds: Vec<Vec<&PackedTernary>> = kinds.iter().map(|layer| layer.matrices()).collect();
    let count = kinds.iter().map(Vec::len).max().unwrap_or(0);
    let place = |n: usize| {
        let most = |size: fn(&PackedTernary) -> usize| {
            kinds.iter().filter_map(|own| own.get(n)).map(|own| size(own)).max().unwrap_or(0)
        };
        let codes = Tensor::uninit(context, [most(|matrix| matrix.words().len())])?;
        Ok((codes, Tensor::uninit(context, [most(|matrix| matrix.row_scales().len())])?))
    };
    let places = (0..count).map(place).collect::<Result<Vec<(Tensor<u32>, Tensor<f32>)>>>()?;
    let of_kind = |own: &Vec<&PackedTernary>| {
        let like = |(matrix, (codes, scales)): (&&PackedTernary, &(Tensor<u32>, Tensor<f32>))| {
            let (rows, columns) = (matrix.rows(), matrix.columns());
            TernaryMatrix::within((codes, scales), rows, columns, matrix.group())
        };
        own.iter().zip(&places).map(like).collect()
    };
    Ok(Slot(kinds.iter().map(of_kind).collect::<Result<_>>()?))
}

/// The bytes that a slot for these layers takes on the device.
pub(super) fn slot_bytes(context: &Context, kinds: &[&HostLayer]) -> Result<u64> {
    let (context, plan) = context.with_label(Footprint::WEIGHTS).planning();
    slot_for(&context, kinds).map(|_| plan.bytes(Footprint::WEIGHTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offloaded_layers_are_counted_and_spread() {
        for (layers, offloaded) in [(1, 0), (1, 1), (12, 0), (12, 5), (12, 6), (12, 12), (30, 29)] {
            let which: Vec<usize> =
                (0..layers).filter(|&layer| is_offloaded(layer, offloaded, layers)).collect();
            assert_eq!(which.len(), offloaded, "{offloaded} of {layers}");
            let apart = which.windows(2).map(|pair| pair[1] - pair[0]);
            let bounds = (layers / offloaded.max(1), layers.div_ceil(offloaded.max(1)));
            assert!(apart.clone().all(|apart| (bounds.0..=bounds.1).contains(&apart)), "{which:?}");
        }
    }
}
