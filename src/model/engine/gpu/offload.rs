//! Layers whose matrices stay in host memory. Two slots on the device hold the one that is computed
//! and the next, which is copied meanwhile: all of it is recorded, so that steps are submitted
//! ahead, and again, as others are.

use crate::{
    error::{Error, Result},
    gpu::{
        context::Context,
        encoder::Encoder,
        host_staging::{Hosted, Upload},
    },
    model::engine::{
        interface::Offloaded,
        layers::{GpuLayer, HostLayer},
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
    slots: Vec<Vec<TernaryMatrix>>,
    /// By their order: which layer, and its copies.
    layers: Vec<(usize, Arc<Vec<Hosted>>)>,
}

/// Returns whether this layer is one of the `offloaded` of all `layers`. They are spread evenly:
/// one is copied while those before it are computed.
fn is_offloaded(layer: usize, offloaded: usize, layers: usize) -> bool {
    (layer + 1) * offloaded / layers > layer * offloaded / layers
}

impl Streamed {
    /// Has a layer stay on the host, if it is among those that do: its vectors are on the device,
    /// its matrices are those of a slot.
    pub fn take(
        &mut self,
        context: &Context,
        index: usize,
        layer: &HostLayer,
        (offloaded, layers): (usize, usize),
    ) -> Result<Option<GpuLayer>> {
        if !is_offloaded(index, offloaded, layers) {
            return Ok(None);
        }
        let slot = self.layers.len() % SLOTS;
        if self.slots.len() == slot {
            self.slots.push(slot_for(context, layer)?);
        }
        let (slot, next, copies) = (&self.slots[slot], Cell::new(0), RefCell::new(Vec::new()));
        let hosted = layer.try_map(
            |matrix| {
                let place = &slot[next.replace(next.get() + 1)];
                let form = (place.rows(), place.columns(), place.group());
                if form != (matrix.rows(), matrix.columns(), matrix.group()) {
                    let scales = |group: Option<usize>| match group {
                        Some(columns) => format!("scales for groups of {columns} columns"),
                        None => "scales without groups".into(),
                    };
                    let what = format!(
                        "layer {index} has {}, another has {}",
                        scales(matrix.group()),
                        scales(place.group())
                    );
                    return Err(Error::Invalid {
                        op: "offload",
                        what: format!("{what}: such layers cannot take turns in memory"),
                    });
                }
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

/// Matrices of the forms of a layer's, not filled.
pub(super) fn slot_for(context: &Context, layer: &HostLayer) -> Result<Vec<TernaryMatrix>> {
    let like = |matrix: &&PackedTernary| {
        TernaryMatrix::uninit(context, matrix.rows(), matrix.columns(), matrix.group())
    };
    layer.matrices().iter().map(like).collect()
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
