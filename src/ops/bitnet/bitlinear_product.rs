//! What the kernels of BitLinear have in common: parameters, bindings, and the two forms of a product.

use crate::{
    kernel::{
        binding::{Binding, Type::*, read, read_write},
        declaration::Kernel,
        params::{Fields, Params as _},
        source::{Part, Source},
    },
    msl,
    ops::tensor::{
        epilogue::{Filling, finished},
        matmul_kernels::Forms,
    },
    params, wgsl,
};

params! { pub struct Params { pub rows: u32, pub tokens: u32, pub words: u32, pub add: u32 } }
params! {
    pub struct FinishParams { pub rows: u32, pub tokens: u32, pub words: u32, pub add: u32, pub biased: u32, pub activation: u32 }
}

pub(super) const BINDINGS: &[Binding] = &[
    read("codes", U32),
    read("w_scale", F32),
    read("x", U32),
    read("x_scale", F32),
    read("x_sum", I32),
    read_write("y", Float("Y")),
    read("bias", Float("Y")),
];

/// What the two forms of a product are declared by: as it is, and finished by a bias, which is the
/// last binding, and an activation.
pub(super) struct Product {
    pub params: [Fields; 2],
    pub bindings: &'static [Binding],
    pub fillings: [Filling; 2],
}

impl Product {
    pub const fn plain(
        &self,
        name: &'static str,
        entry: &'static str,
        sources: &'static [Source],
    ) -> Kernel {
        let bindings = self.bindings.split_at(self.bindings.len() - 1).0;
        self.fillings[0].fill(Kernel::trusted(name, self.params[0], bindings, sources).entry(entry))
    }

    pub const fn finish(
        &self,
        name: &'static str,
        entry: &'static str,
        sources: &'static [Source],
    ) -> Kernel {
        self.fillings[1]
            .fill(Kernel::trusted(name, self.params[1], self.bindings, sources).entry(entry))
    }

    pub const fn forms(
        &self,
        names: [&'static str; 2],
        entry: &'static str,
        sources: &'static [Source],
    ) -> Forms {
        [self.plain(names[0], entry, sources), self.finish(names[1], entry, sources)]
    }
}

/// Products of integers as they are, whose kernels bring their parameters.
pub(super) const PRODUCT_PLAIN: Filling =
    Filling { wgsl: wgsl!["bitnet/product_plain"], msl: msl!["tensor/product_plain"] };

/// Weights with a scale a row.
pub(super) const PRODUCT: Product = {
    const PARAMS: Part =
        Part::new("Params", "struct Params { rows: u32, tokens: u32, words: u32, add: u32 }\n");
    const MSL_PARAMS: Part =
        Part::new("Params", "struct Params { uint rows, tokens, words, add; };\n");
    const FINISH_PARAMS: Part = Part::new(
        "Params",
        "struct Params { rows: u32, tokens: u32, words: u32, add: u32, biased: u32, activation: u32 }\n",
    );
    const MSL_FINISH_PARAMS: Part = Part::new(
        "Params",
        "struct Params { uint rows, tokens, words, add, biased, activation; };\n",
    );
    const PLAIN: Filling = Filling {
        wgsl: wgsl![PARAMS, "bitnet/product_plain"],
        msl: msl![MSL_PARAMS, "tensor/product_plain"],
    };
    const FINISH: Filling = finished!("Y", 6, 7, wgsl [FINISH_PARAMS, "bitnet/product_finish"], msl [MSL_FINISH_PARAMS]);
    Product {
        params: [Params::FIELDS, FinishParams::FIELDS],
        bindings: BINDINGS,
        fillings: [PLAIN, FINISH],
    }
};

pub(super) const fn forms(
    names: [&'static str; 2],
    entry: &'static str,
    sources: &'static [Source],
) -> Forms {
    PRODUCT.forms(names, entry, sources)
}

/// The names of both forms.
macro_rules! names {
    ($name:literal) => {
        [$name, concat!($name, "_finish")]
    };
}
pub(super) use names;
