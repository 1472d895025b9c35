//! Rotary embedding, the KV cache in states, and attention to all of it under a mask.

use crate::{
    graph::{Graph, Step},
    mil::{Arg, Var},
    proto::DataType,
};

impl Graph<'_> {
    /// Appends keys and values of a layer to the cache, and attends: softmax(q·kᵀ / √head_dim +
    /// mask)·v. `value` has queries, keys and values, `[1, tokens, heads · head_dim]` each.
    pub fn attention(&mut self, layer: usize, value: &[Var], step: &Step<'_>) -> Var {
        let c = self.shape.config;
        let name = format!("layer_{layer}_attention");
        let queries = self.split_heads(&format!("{name}_queries"), &value[0], c.heads);
        let queries = self.rotate(&format!("{name}_queries"), &queries, step);
        let keys = self.split_heads(&format!("{name}_keys"), &value[1], c.kv_heads);
        let keys = self.rotate(&format!("{name}_keys"), &keys, step);
        let values = self.split_heads(&format!("{name}_values"), &value[2], c.kv_heads);
        let [keys, values] = self.append(&name, layer, [&keys, &values], step);
        self.attend(&name, &queries, [&keys, &values], step.mask)
    }

    /// Rotates `[1, heads, tokens, head_dim]`, in which number i of a head turns with number i +
    /// head_dim / 2.
    fn rotate(&mut self, name: &str, x: &Var, step: &Step<'_>) -> Var {
        let [cosines, sines] = step.rotary;
        let half = x.shape[3] / 2;
        let mut halves = Vec::new();
        for (place, begin) in [("low", 0), ("high", half)] {
            let end: Vec<i32> =
                [1, x.shape[1], x.shape[2], begin + half].iter().map(|&n| n as i32).collect();
            let arguments = [
                ("x", Arg::Var(x)),
                ("begin", Arg::Ints(&[0, 0, 0, begin as i32])),
                ("end", Arg::Ints(&end)),
            ];
            let shape = [1, x.shape[1], x.shape[2], half];
            halves.push(self.b.floats(
                "slice_by_index",
                &format!("{name}_{place}"),
                &arguments,
                &shape,
            ));
        }
        let (low, high) = (&halves[0], &halves[1]);
        let product = |graph: &mut Self, place: &str, x: &Var, y: &Var| {
            graph.binary("mul", &format!("{name}_{place}"), x, Arg::Var(y))
        };
        let low_cos = product(self, "low_cos", low, cosines);
        let high_sin = product(self, "high_sin", high, sines);
        let high_cos = product(self, "high_cos", high, cosines);
        let low_sin = product(self, "low_sin", low, sines);
        let first = self.binary("sub", &format!("{name}_first"), &low_cos, Arg::Var(&high_sin));
        let second = self.binary("add", &format!("{name}_second"), &high_cos, Arg::Var(&low_sin));
        let arguments = [
            ("values", Arg::Vars(&[&first, &second])),
            ("axis", Arg::Int(-1)),
            ("interleave", Arg::Bool(false)),
        ];
        self.b.floats("concat", &format!("{name}_rotated"), &arguments, &x.shape)
    }

    /// Writes keys and values `[1, kv_heads, tokens, head_dim]` into the cache, and returns those
    /// of all positions of the layer, `[kv_heads, context, head_dim]`.
    fn append(&mut self, name: &str, layer: usize, new: [&Var; 2], step: &Step<'_>) -> [Var; 2] {
        let c = self.shape.config;
        let dims = [c.kv_heads as i32, c.head_dim as i32];
        let begin = self.place(&format!("{name}_begin"), [layer as i32, 0], &step.places[0], 0);
        let end = self.place(
            &format!("{name}_end"),
            [layer as i32 + 1, dims[0]],
            &step.places[1],
            dims[1],
        );
        let mut whole = Vec::new();
        for (new, state) in new.into_iter().zip(step.states) {
            let name = format!("{name}_{}_cache", state.name);
            whole.push(self.update(&name, layer, new, state, [&begin, &end]));
        }
        [whole.remove(0), whole.remove(0)]
    }

    /// A corner of a part of the cache: layer, head, position, place in the head.
    fn place(&mut self, name: &str, first: [i32; 2], position: &Var, last: i32) -> Var {
        let kind = |shape| (DataType::Int32, shape);
        let layer_head = self.b.ints(&format!("{name}_layer_head"), &first);
        let dim = self.b.ints(&format!("{name}_dim"), &[last]);
        let arguments = [
            ("values", Arg::Vars(&[&layer_head, position, &dim])),
            ("axis", Arg::Int(0)),
            ("interleave", Arg::Bool(false)),
        ];
        self.b.op("concat", name, &arguments, kind(&[4][..]))
    }

    /// Writes f16 of `new` between two corners of a state. Returns the layer's part of it in f32,
    /// `[kv_heads, context, head_dim]`.
    fn update(
        &mut self,
        name: &str,
        layer: usize,
        new: &Var,
        state: &Var,
        [begin, end]: [&Var; 2],
    ) -> Var {
        let (kv_heads, context, dim) = (state.shape[1], state.shape[2], state.shape[3]);
        let half = |shape| (DataType::Float16, shape);
        let cast = [("x", Arg::Var(new)), ("dtype", Arg::Text("fp16"))];
        let new = self.b.op("cast", &format!("{name}_new"), &cast, half(&new.shape[..]));
        let read = [("input", Arg::Var(state))];
        let before = self.b.op("read_state", &format!("{name}_before"), &read, half(&state.shape));
        let arguments = [
            ("x", Arg::Var(&before)),
            ("update", Arg::Var(&new)),
            ("begin", Arg::Var(begin)),
            ("end", Arg::Var(end)),
        ];
        let updated =
            self.b.op("slice_update", &format!("{name}_updated"), &arguments, half(&state.shape));
        let write = [("input", Arg::Var(state)), ("data", Arg::Var(&updated))];
        self.b.effect("write_state", &format!("{name}_write"), &write);
        let after = self.b.op("read_state", &format!("{name}_after"), &read, half(&state.shape));
        let layer = layer as i32;
        let last = [layer + 1, kv_heads as i32, context as i32, dim as i32];
        let arguments = [
            ("x", Arg::Var(&after)),
            ("begin", Arg::Ints(&[layer, 0, 0, 0])),
            ("end", Arg::Ints(&last)),
        ];
        let part = [1, kv_heads, context, dim];
        let part = self.b.op("slice_by_index", &format!("{name}_layer"), &arguments, half(&part));
        let cast = [("x", Arg::Var(&part)), ("dtype", Arg::Text("fp32"))];
        let floats = self.b.floats("cast", &format!("{name}_floats"), &cast, &part.shape);
        self.reshape(name, &floats, &[kv_heads, context, dim])
    }

    /// Queries `[1, heads, tokens, head_dim]` attend to keys and values `[kv_heads, context,
    /// head_dim]`. Heads that share keys are rows of one product. Returns `[1, tokens, heads ·
    /// head_dim]`.
    fn attend(&mut self, name: &str, queries: &Var, [keys, values]: [&Var; 2], mask: &Var) -> Var {
        let c = self.shape.config;
        let (tokens, context, dim) = (self.shape.tokens, self.shape.context, c.head_dim);
        let sharing = c.heads / c.kv_heads;
        let rows = [c.kv_heads, sharing * tokens];
        let scale = (dim as f32).sqrt().recip();
        let scaled = self.binary("mul", &format!("{name}_scaled"), queries, Arg::Float(scale));
        let grouped = self.reshape(&format!("{name}_grouped"), &scaled, &[rows[0], rows[1], dim]);
        let scores = self.matmul(&format!("{name}_scores"), &grouped, keys, true);
        let by_head =
            self.reshape(&format!("{name}_by_head"), &scores, &[rows[0], sharing, tokens, context]);
        let masked = self.binary("add", &format!("{name}_masked"), &by_head, Arg::Var(mask));
        let softmax = [("x", Arg::Var(&masked)), ("axis", Arg::Int(-1))];
        let weights = self.b.floats("softmax", &format!("{name}_weights"), &softmax, &masked.shape);
        let weights =
            self.reshape(&format!("{name}_weight_rows"), &weights, &[rows[0], rows[1], context]);
        let sums = self.matmul(&format!("{name}_sums"), &weights, values, false);
        let heads = self.reshape(&format!("{name}_heads"), &sums, &[1, c.heads, tokens, dim]);
        let swap = [("x", Arg::Var(&heads)), ("perm", Arg::Ints(&[0, 2, 1, 3]))];
        let joined = self.b.floats(
            "transpose",
            &format!("{name}_by_token"),
            &swap,
            &[1, tokens, c.heads, dim],
        );
        self.reshape(name, &joined, &[1, tokens, c.heads * dim])
    }

    /// x·y, or x·yᵀ, of matrices `[kv_heads, ..]`.
    fn matmul(&mut self, name: &str, x: &Var, y: &Var, transposed: bool) -> Var {
        let shape = [x.shape[0], x.shape[1], y.shape[if transposed { 1 } else { 2 }]];
        let arguments = [
            ("x", Arg::Var(x)),
            ("y", Arg::Var(y)),
            ("transpose_x", Arg::Bool(false)),
            ("transpose_y", Arg::Bool(transposed)),
        ];
        self.b.floats("matmul", name, &arguments, &shape)
    }
}
