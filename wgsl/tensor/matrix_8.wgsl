// What a tensor core multiplies: matrices of 8 × 8 in f16. It adds up in floats.
alias Left = coop_mat8x8<f16, A>;
alias Right = coop_mat8x8<f16, B>;
alias Sum = coop_mat8x8<f32, C>;
