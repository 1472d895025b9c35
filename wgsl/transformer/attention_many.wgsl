@compute @workgroup_size(WG_X, WG_Y, WG_Z)
fn attention_many(group: Group, ids: Ids) { attend_all(group, ids); }
