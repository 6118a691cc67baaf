// CUDA graphs for tests.
#include <cstdio>
#include <cstdlib>

#include "tests/gpu/graphs.h"

namespace sparsed::test {
namespace {

void Must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::abort();
}

}  // namespace

CapturedGraph::CapturedGraph(const std::function<void(void* stream)>& queue, bool global) {
  cudaStream_t stream = nullptr;
  Must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Must(cudaStreamBeginCapture(
      stream, global ? cudaStreamCaptureModeGlobal : cudaStreamCaptureModeThreadLocal));
  queue(stream);
  cudaGraph_t graph = nullptr;
  Must(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t runs = nullptr;
  Must(cudaGraphInstantiate(&runs, graph, 0));
  Must(cudaGraphDestroy(graph));
  stream_ = stream;
  runs_ = runs;
}

CapturedGraph::~CapturedGraph() {
  Must(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(runs_)));
  Must(cudaStreamDestroy(static_cast<cudaStream_t>(stream_)));
}

void CapturedGraph::Run() {
  Must(cudaGraphLaunch(static_cast<cudaGraphExec_t>(runs_), static_cast<cudaStream_t>(stream_)));
  Must(cudaStreamSynchronize(static_cast<cudaStream_t>(stream_)));
}

}  // namespace sparsed::test
