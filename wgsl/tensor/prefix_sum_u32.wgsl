// Signed numbers too: both are sums modulo 2^32.
alias T = u32;
