// Empty on purpose: metal.h has the declarations, and is included after the kernel's text has been preprocessed and rewritten.
