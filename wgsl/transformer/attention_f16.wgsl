// Prompts' attention from a cache in f16, for GPUs whose tensor cores only Metal reaches: WGSL computes it as attention_many does.
alias C = f16;

@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn attention_f16(group: Group, ids: Ids) { attend_all(group, ids); }
