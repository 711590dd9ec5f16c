#pragma once
// What a learner is handed to train on and what it says about it (protocol.md §8).
#include <compare>
#include <cstdint>

namespace archipelago::diloco {

inline constexpr std::uint32_t kSequencesPerBlock = 256;

// Sequences [from, upto) of one block. `block` is global: epoch = block / blocks_per_epoch.
struct Lease {
  std::uint64_t block = 0;
  std::uint32_t from = 0;
  std::uint32_t upto = 0;
  auto operator<=>(const Lease&) const = default;
};

// Sequences below `upto` of the block have been trained on by its holder.
struct BlockPosition {
  std::uint64_t block = 0;
  std::uint32_t upto = 0;
  auto operator<=>(const BlockPosition&) const = default;
};

}  // namespace archipelago::diloco
