// How long the operating system lets one thread compute before it looks at others that wait.
#pragma once

namespace sparsed::server {

/// Asks for slices of 0.1 ms for this thread and those that it starts, in the place of some 3 ms:
/// on a processor that computes, threads that answer requests come to their turn as soon as
/// something arrives. On kernels before Linux 6.12, and where it is not allowed, nothing changes.
void ShortenTimeSlice();

}  // namespace sparsed::server
