#pragma once
// Stable reasons: why a learner unit or the outer optimizer was replaced, and why a condition
// holds.
#include <optional>
#include <string_view>

namespace archipelago::op {

// Why a pod ended or was given up.
enum class FailureReason {
  kFinished,        // exit 0: trained to the budget
  kCrash,           // charged
  kOomKilled,       // charged
  kWatchdog,        // exit 14: the learner saw itself stuck; charged as a hang
  kHang,            // the operator saw it silent and deaf; charged
  kDisrupted,       // preemption, eviction, drain, node shutdown
  kPodDeleted,      // somebody deleted the pod
  kNodeLost,        // its node did not answer for nodeLostSeconds
  kLeft,            // exit 10: left on SIGTERM
  kFenced,          // exit 11: a newer incarnation is known
  kConfigRefused,   // exit 12: final
  kDataUnreadable,  // exit 13: final
  kNotStarted,      // the pod failed before any container ran (node refused it)
};
[[nodiscard]] std::string_view to_string(FailureReason reason);
[[nodiscard]] std::optional<FailureReason> parse_failure_reason(std::string_view text);

// Condition types, exactly (resource.md).
namespace condition {
inline constexpr char kSpecValid[] = "SpecValid";
inline constexpr char kOuterOptimizerReady[] = "OuterOptimizerReady";
inline constexpr char kQuorumAvailable[] = "QuorumAvailable";
inline constexpr char kProgressing[] = "Progressing";
inline constexpr char kSuspended[] = "Suspended";
inline constexpr char kComplete[] = "Complete";
inline constexpr char kFailed[] = "Failed";
inline constexpr char kNameConflict[] = "NameConflict";
inline constexpr char kPodRejected[] = "PodRejected";
inline constexpr char kDuplicateUnit[] = "DuplicateUnit";
inline constexpr char kVersionSkew[] = "VersionSkew";
inline constexpr char kRolledBack[] = "RolledBack";
inline constexpr char kCheckpointStale[] = "CheckpointStale";
inline constexpr char kOuterOptimizerNodeLost[] = "OuterOptimizerNodeLost";
inline constexpr char kProgressStale[] = "ProgressStale";
inline constexpr char kForbidden[] = "Forbidden";
inline constexpr char kRebuilt[] = "Rebuilt";
inline constexpr char kJournalFull[] = "JournalFull";
inline constexpr char kValidationSkipped[] = "ValidationSkipped";
inline constexpr char kModelNotWritten[] = "ModelNotWritten";
}  // namespace condition

// Learner exit codes (protocol.md §9).
inline constexpr int kExitFinished = 0;
inline constexpr int kExitLeft = 10;
inline constexpr int kExitFenced = 11;
inline constexpr int kExitConfigRefused = 12;
inline constexpr int kExitDataUnreadable = 13;
inline constexpr int kExitWatchdog = 14;

}  // namespace archipelago::op
