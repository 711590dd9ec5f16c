#pragma once
// The HTTP surface (protocol.md §11). Handlers parse, ask the engine, answer.
//
// Learners' port:
//   POST /v1/hello              wire::parse_hello -> wire::encode(HelloReply)
//   POST /v1/progress           wire::parse_progress -> wire::encode(ProgressReply); held until
//                               news, one heartbeat at most, unless `news` is -1
//   POST /v1/leave              {unit, incarnation, session} -> {}, or {"innerState": id}: nobody
//                               else has inner state, please PUT it to /v1/recovery/{id}
//   PUT  /v1/layout/{digest}    {"layout": Layout::to_text(), "assets": {name: text}} -> {}; at
//                               most 16 MiB
//   PUT  /v1/rounds/{t}/upload  one frame: kUpload of round t, or with t = 0 a kSeedKeyframe
//                               -> {"t", "attempt"} receipt
//   GET  /v1/fragments/{p}?have=V  one frame, kDelta or kKeyframe; 204 when nothing is newer than V
//                               (-1: holds nothing)
//   PUT, GET /v1/recovery/{id}  inner state through the spool; 404 until it is complete
//   POST /v1/tape               one wire::encode_tape_record(Batch) of the sender -> {"tape": n}:
//                               events below n are written (docs/tape.md). An upload may bring it
//                               as X-Archipelago-Tape; then the receipt has "tape"
//   PUT  /v1/settings           wire::parse_settings -> the settings in force
//   GET  /v1/status             wire::encode(StatusDocument)
//   GET  /v1/model, /v1/model/{file}?step=S  file names, a file: model_files.h; on the admin port
//   too
// X-Archipelago-Unit, -Incarnation and -Session on GETs and PUTs without a frame are checked for
// fencing when present. Admin port: /healthz /readyz /statusz /metrics.
#include <atomic>
#include <filesystem>

#include "common/http/server.h"
#include "common/wire/frame.h"
#include "outer-optimizer/core_engine.h"
#include "outer-optimizer/metrics.h"
#include "outer-optimizer/model_files.h"
#include "outer-optimizer/relay.h"
#include "outer-optimizer/trailer_cache.h"
#include "outer-optimizer/upload_table.h"

namespace archipelago::outer {

inline constexpr std::size_t kMaxLayoutBody = 16U << 20;

// What the handlers share; everything outlives the servers.
struct Services {
  const DaemonOptions& options;
  CoreEngine& engine;
  StoreThread& store;
  UploadTable& uploads;
  RelaySpool& relays;
  DaemonMetrics& metrics;
  TapeLog& tape;
  ModelFiles& models;
  TrailerCache& trailers;
  wire::Bytes16 run_id_bytes;
  Logger log;
  std::atomic<bool>& ready;
};

void add_learner_routes(http::Server& server, Services& services);
void add_upload_route(http::Server& server, Services& services);    // upload.cc
void add_fragment_route(http::Server& server, Services& services);  // download.cc
void add_admin_routes(http::Server& server, Services& services, const http::Server& learners);

// An Error as a reply, with where the run stands as `current`.
[[nodiscard]] http::Reply reply_of(const Services& services, const Error& error,
                                   std::string_view expected = {});
// A batch of the event tape; `who` must be the one it names.
[[nodiscard]] Result<std::int64_t> take_events(Services& services, const diloco::UnitKey& who,
                                               std::span<const std::byte> bytes, bool now);
// kConflict: the bases of the sender (X-Archipelago-Lineage) are not of what is published now.
[[nodiscard]] Status check_lineage(Services& services, const http::Request& request);
// The sender named in the X-Archipelago-* headers; nullopt without them.
[[nodiscard]] Result<std::optional<diloco::UnitKey>> sender_of(const http::Request& request);

}  // namespace archipelago::outer
