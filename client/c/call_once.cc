// std::call_once's own state (declared in <mutex>), ours alone. The archives are compiled for
// executables and want libstdc++'s at a fixed distance from the thread's pointer, which it cannot
// have any more when the library is loaded late: "cannot allocate memory in static TLS block",
// after PyTorch, say.
namespace std {

__thread void* __once_callable;  // NOLINT(bugprone-reserved-identifier)
__thread void (*__once_call)();  // NOLINT(bugprone-reserved-identifier)

extern "C" void __once_proxy() { __once_call(); }  // NOLINT(bugprone-reserved-identifier)

}  // namespace std
