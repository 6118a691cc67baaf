// Chains against the same products one by one, on any server.
#pragma once

#include "sparsed/client.h"

namespace sparsed::test {

/// Runs chains of all kinds, types and transports on a server that has nothing yet, and expects
/// what plain sums over the nonzeros give.
void CheckChains(const Client& client);

}  // namespace sparsed::test
