// Where the time of many requests went, and what helps: the answer to "why is it slow?".
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "server/telemetry/stage_record.h"

namespace sparsed::server {

/// Sums over requests. Not thread-safe.
struct TimeSpent {
  double requests = 0;
  double seconds = 0;                       ///< from their start to their last byte
  std::array<double, kPhases> phases = {};  ///< seconds; phases may overlap
  /// Of the queue phase, for trials of autotuning, and for other tenants' requests.
  double queue_trials = 0, queue_others = 0;
  std::array<double, kTransports> bytes = {};  ///< of arrays in and out, by the request's transport

  void Add(const StageRecord& record);
  void Add(const TimeSpent& other);

  double operator[](Phase phase) const { return phases[static_cast<size_t>(phase)]; }
};

/// Of requests, those in the middle by their duration: without the fastest and the slowest quarter,
/// so that one that met a cold cache does not say what all the others are like.
TimeSpent MiddleOf(std::vector<TimeSpent> requests);

/// How most of the bytes came and went, as TransportOf says it of one request.
std::string_view TransportOf(const TimeSpent& time);

/// Sentences on `matrix`'s products: what most of their time is, how much of it, and what helps
/// where that saves a share worth having, else that nothing is slow; "" where there were none.
std::string Finding(const TimeSpent& time, std::string_view matrix);

}  // namespace sparsed::server
