#pragma once
// From the resolved resource to what the daemon's parts want to know. Pure.
#include <cstdint>
#include <filesystem>
#include <string>

#include "common/base/result.h"
#include "common/codec/codec.h"
#include "common/config/spec.h"
#include "common/diloco/syncer_core.h"
#include "common/http/endpoint.h"
#include "outer-optimizer/store/store.h"

namespace archipelago::outer {

// The command line.
struct Flags {
  std::filesystem::path config;
  std::filesystem::path data_dir;
  http::Endpoint listen{"0.0.0.0", 8470};
  http::Endpoint admin{"127.0.0.1", 8471};
  std::string run_id;
  std::string termination_log;
};

struct Limits {
  std::size_t units = 1;            // learner units that the spec asks for
  std::size_t held_replies = 8;     // progress replies held at once, one a unit
  std::size_t uploads_at_once = 4;  // bodies read at once
  std::size_t threads = 16;         // of the learners' port
  std::uint64_t upload_rounds = 4;  // encoded uploads stored: units x this x the largest fragment
};

struct DaemonOptions {
  Flags flags;
  diloco::SyncerConfig core;
  StoreOptions store;
  Limits limits;
  bool adopt = false;  // the run that the data folder holds goes on under its own id
  codec::Codec uplink = codec::Codec::kInt4;
  Duration linger = std::chrono::seconds(600);
  std::int64_t checkpoint_every = 100;
  std::string resolved;  // the whole DecoupledTraining as JSON, for the event tape
};

// kRefused: a setting that this build does not have; names the field, what was given and what is
// allowed.
[[nodiscard]] Result<DaemonOptions> make_options(const Flags& flags,
                                                 const config::DecoupledTraining& training);

}  // namespace archipelago::outer
