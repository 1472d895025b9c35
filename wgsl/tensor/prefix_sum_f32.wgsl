alias T = f32;
