// What a tensor core multiplies: matrices of 16 × 16 in f16. It adds up in floats.
alias Left = coop_mat16x16<f16, A>;
alias Right = coop_mat16x16<f16, B>;
alias Sum = coop_mat16x16<f32, C>;
