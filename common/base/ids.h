#pragma once
// Strong ids: two counters of different meaning never convert into each other.
#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>

namespace archipelago {

template <class Tag, class Rep>
struct Id {
  using rep = Rep;
  Rep value{};
  constexpr Id() = default;
  constexpr explicit Id(Rep v) : value(v) {}
  constexpr auto operator<=>(const Id&) const = default;
  constexpr Id& operator++() {
    ++value;
    return *this;
  }
  [[nodiscard]] constexpr Id next() const { return Id(value + 1); }
  friend std::ostream& operator<<(std::ostream& out, const Id& id) { return out << id.value; }
};

using GlobalStep =
    Id<struct GlobalStepTag, std::int64_t>;  // the outer optimizer's clock, 1..T; 0 = the seed
using LocalStep = Id<struct LocalStepTag, std::int64_t>;      // a learner's own optimizer steps
using FragmentId = Id<struct FragmentTag, std::int32_t>;      // 0..P-1
using Incarnation = Id<struct IncarnationTag, std::int64_t>;  // fencing token, from 1

}  // namespace archipelago

template <class Tag, class Rep>
struct std::hash<archipelago::Id<Tag, Rep>> {
  std::size_t operator()(const archipelago::Id<Tag, Rep>& id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
