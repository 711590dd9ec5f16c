#pragma once
// JSON forms of the messages between learners and the outer optimizer, of the status document and
// of SyncerCore's durable state. Parsing never throws, bounds every list and string (limits below),
// and names the field that is wrong. Unknown keys are ignored: a newer peer may say more.
// Non-finite numbers travel as absent keys.
#include <cstddef>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/diloco/messages.h"
#include "common/diloco/syncer_core.h"

namespace archipelago::wire {

inline constexpr std::size_t kMaxMessageBytes =
    64 * 1024;  // progress and hello bodies (protocol.md §11)
inline constexpr std::size_t kMaxReplyBytes = 1024 * 1024;
inline constexpr std::size_t kMaxStateBytes = 64 * 1024 * 1024;
inline constexpr std::size_t kMaxListedRounds = 256;  // contributions, declines, rounds, outcomes
inline constexpr std::size_t kMaxListedBlocks = 4096;
inline constexpr std::size_t kMaxBases = 4096;  // fragments of a run, at most (the spec's bound)
// What a learner may claim of earlier epochs: beyond any run, far below an overflow.
inline constexpr std::int64_t kMaxEpoch = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxLeaseMark = std::int64_t{1} << 40;

[[nodiscard]] std::string encode(const diloco::HelloRequest& message);
[[nodiscard]] std::string encode(const diloco::HelloReply& message);
[[nodiscard]] std::string encode(const diloco::ProgressReport& message);
[[nodiscard]] std::string encode(const diloco::ProgressReply& message);
[[nodiscard]] std::string encode(const diloco::StatusDocument& message);
[[nodiscard]] std::string encode(const diloco::SyncerState& state);
[[nodiscard]] std::string encode(const diloco::UnitKey& who);

[[nodiscard]] Result<diloco::HelloRequest> parse_hello(std::string_view text);
[[nodiscard]] Result<diloco::HelloReply> parse_hello_reply(std::string_view text);
[[nodiscard]] Result<diloco::ProgressReport> parse_progress(std::string_view text);
[[nodiscard]] Result<diloco::ProgressReply> parse_progress_reply(std::string_view text);
// Of another version, too: only the phase, and the names in lists, must be there.
[[nodiscard]] Result<diloco::StatusDocument> parse_status(std::string_view text);
[[nodiscard]] Result<diloco::SyncerState> parse_state(std::string_view text);
[[nodiscard]] Result<diloco::UnitKey> parse_unit_key(std::string_view text);
// PUT /v1/settings. kInvalid: no JSON object; kRefused: a field that is missing, of the wrong type
// or not allowed.
[[nodiscard]] Result<diloco::LiveSettings> parse_settings(std::string_view text);
[[nodiscard]] std::string encode(const diloco::LiveSettings& settings);

}  // namespace archipelago::wire
