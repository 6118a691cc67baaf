// Errors as the C interface has them. No exception leaves it.
#pragma once

#include <exception>
#include <new>
#include <stdexcept>

#include "absl/status/status.h"
#include "sparsed/c.h"

namespace sparsed::c {

/// Null if it is OK. The caller's.
sparsed_error* ToError(const absl::Status& status) noexcept;
/// RESOURCE_EXHAUSTED; needs no memory.
sparsed_error* OutOfMemory() noexcept;

/// What `body` (absl::Status()) ends with, also if it throws.
template <typename Body>
sparsed_error* Guarded(const Body& body) {
  try {
    return ToError(body());
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  } catch (const std::length_error&) {
    return OutOfMemory();
  } catch (const std::exception& e) {
    return ToError(absl::InternalError(e.what()));
  }
}

}  // namespace sparsed::c
