#pragma once
// Every bound on what a peer may send, in one place. A limit is checked before anything is
// allocated for what it bounds; beyond it the answer is ErrorKind::kTooLarge.
#include <cstddef>
#include <cstdint>

namespace archipelago::wire {

inline constexpr std::size_t kMaxUnitName =
    63;  // bytes of a learner unit's name (a Kubernetes label)

// Binary frames (frame.h, docs/wire-format.md).
inline constexpr std::size_t kMaxConsumedRanges = 4096;  // leased blocks that one upload reports on
inline constexpr std::size_t kMaxFrameUnits =
    512;  // members, and excluded, that a downlink frame names
inline constexpr std::int32_t kMaxFragments = 65536;  // P
inline constexpr std::uint64_t kMaxFramePayload = std::uint64_t{1}
                                                  << 40;  // callers set the fragment's own size

}  // namespace archipelago::wire
