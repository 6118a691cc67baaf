// A libcuda.so.1 that is no driver: it can be opened, and has nothing of what CUDA looks for.
extern "C" int sparsed_broken_driver() { return 0; }
