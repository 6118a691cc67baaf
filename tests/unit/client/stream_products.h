// What clients with several streams compute, against one with one stream, on any server.
#pragma once

#include <functional>
#include <string>

namespace sparsed::test {

/// Bytes that carriers brought or took ("in", "out") at the server.
using CarriedBytes = std::function<double(const std::string& direction)>;

/// Products of all kinds that have chunks, in f32 and f64 and of odd sizes, by clients with 2 and 4
/// streams: the same as by a client with one, and carriers have a part in it.
void CheckStreams(const std::string& address, const CarriedBytes& carried);
/// Many calls at once by one client, some of them cancelled.
void CheckStreamsAtOnce(const std::string& address, const CarriedBytes& carried);

}  // namespace sparsed::test
