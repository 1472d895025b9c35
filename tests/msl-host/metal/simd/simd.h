// Empty: what it declares on Metal is in metal.h, which comes in after the kernel's own text has been rewritten.
