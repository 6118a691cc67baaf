// Whatever the other side of a ring writes into the memory, also between two looks: what is taken
// is a message of a slot, or an error in a sentence that ends the ring.
#include <google/protobuf/stubs/logging.h>

#include <vector>

#include "proto/wire/ring.h"
#include "tests/fuzz/check.h"

namespace sparsed::wire {
namespace {

using fuzz::Check;

void TakeAll(RingConsumer consumer, const RingSize& size, fuzz::Input& input, std::byte* memory) {
  for (uint32_t taken = 0; taken < 3 * size.slots; ++taken) {
    const auto message = consumer.Take();
    if (!message.ok()) {
      fuzz::CheckSentence(message.status());
      return;
    }
    if (!*message) return;
    Check((*message)->bytes.Length() <= size.message_bytes());
    // The other side goes on writing.
    const size_t at = input.Number<uint16_t>() % (size.file_bytes() - 4);
    const auto word = input.Number<uint32_t>();
    std::memcpy(memory + at, &word, sizeof(word));
  }
}

}  // namespace
}  // namespace sparsed::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparsed::wire;  // NOLINT(google-build-using-namespace)
  static const google::protobuf::LogSilencer silence;
  sparsed::fuzz::Input input(data, size);
  RingSize ring{.slots = 2u << input.Number<uint8_t>() % 3, .slot_bytes = 1024};
  if (!ring.Check().ok()) return 0;
  alignas(64) static std::byte memory[4096 + 2 * 8 * 1024];
  std::memset(memory, 0, sizeof(memory));
  // Header fields and slots that are far apart: a place and what is there.
  for (int i = input.Number<uint8_t>() % 32; i > 0; --i) {
    const size_t at = input.Number<uint16_t>() % ring.file_bytes();
    const std::string_view bytes = input.Bytes(input.Number<uint8_t>());
    std::memcpy(memory + at, bytes.data(), std::min(bytes.size(), ring.file_bytes() - at));
  }
  const RingMemory shared(memory, ring);
  sparsed::fuzz::CheckSentence(shared.RequestProducer().Untaken().status());
  sparsed::fuzz::CheckSentence(shared.ReplyProducer().Untaken().status());
  TakeAll(shared.RequestConsumer(), ring, input, memory);
  TakeAll(shared.ReplyConsumer(), ring, input, memory);
  (void)shared.Ended();
  return 0;
}
