#include "common/diloco/schedule.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <catch2/catch.hpp>

#include "common/base/rng.h"
#include "common/diloco/fragmentation.h"

using namespace archipelago;
using namespace archipelago::diloco;

namespace {

Layout layout_with(const std::vector<std::int64_t>& sizes) {
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Tensor t;
    t.name = "t" + std::to_string(100 + i);
    t.shape = {sizes[i]};
    tensors.push_back(t);
  }
  return Layout::create(std::move(tensors)).value();
}

// The smallest possible largest fragment, by trying every assignment.
std::int64_t optimum(const std::vector<std::int64_t>& sizes, std::size_t fragments) {
  std::vector<std::int64_t> load(fragments, 0);
  std::int64_t best = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  auto place = [&](auto&& self, std::size_t i) -> void {
    if (*std::max_element(load.begin(), load.end()) >= best) return;
    if (i == sizes.size()) {
      best = *std::max_element(load.begin(), load.end());
      return;
    }
    for (auto& l : load) {
      l += sizes[i];
      self(self, i + 1);
      l -= sizes[i];
    }
  };
  place(place, 0);
  return best;
}

}  // namespace

TEST_CASE("balanced fragmentation stays within 4/3 of the optimum and uses every tensor once") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Rng rng(seed);
    const std::size_t tensors = 2 + rng.below(7);
    const std::size_t fragments = 1 + rng.below(std::min<std::uint64_t>(tensors, 4));
    std::vector<std::int64_t> sizes;
    for (std::size_t i = 0; i < tensors; ++i)
      sizes.push_back(1 + static_cast<std::int64_t>(rng.below(50)));
    const auto result =
        Fragmentation::balanced(layout_with(sizes), static_cast<std::int64_t>(fragments));
    REQUIRE(result.has_value());
    CHECK(3 * result->max_elements() <= 4 * optimum(sizes, fragments));
    std::set<std::size_t> seen;
    for (const auto& fragment : result->fragments()) {
      CHECK_FALSE(fragment.tensors.empty());
      std::int64_t offset = 0;
      for (const auto& t : fragment.tensors) {
        CHECK(t.offset == offset);
        CHECK(t.elements == sizes[t.index]);
        CHECK(seen.insert(t.index).second);
        offset += t.elements;
      }
      CHECK(fragment.elements == offset);
    }
    CHECK(seen.size() == tensors);
  }
}

TEST_CASE("fragmentation breaks ties by name and by lowest fragment") {
  const auto result = Fragmentation::balanced(layout_with({5, 5, 5, 9}), 2).value();
  // 9 -> 0; 5 -> 1; 5 -> 0 has 9, 1 has 5: -> 1; 5: 0 has 9, 1 has 10 -> 0.
  REQUIRE(result.count() == 2);
  CHECK(result[FragmentId(0)].tensors.size() == 2);
  CHECK(result[FragmentId(0)].tensors[0].index == 2);
  CHECK(result[FragmentId(0)].tensors[1].index == 3);
  CHECK(result[FragmentId(1)].tensors[0].index == 0);
  CHECK(result.max_elements() == 14);
}

TEST_CASE("more fragments than tensors, or none, is an error that says so") {
  const auto result = Fragmentation::balanced(layout_with({1, 2}), 3);
  REQUIRE_FALSE(result.has_value());
  CHECK(result.error().message.find("2 tensors for 3 fragments") != std::string::npos);
  CHECK_FALSE(Fragmentation::balanced(layout_with({1}), 0).has_value());
}

TEST_CASE("with H = P every step has exactly one fragment, each once a cycle") {
  const Schedule schedule = Schedule::create(24, 24).value();
  std::set<FragmentId> cycle;
  for (std::int64_t t = 1; t <= 24; ++t) {
    const auto due = schedule.due(GlobalStep(t));
    REQUIRE(due.size() == 1);
    cycle.insert(due[0]);
  }
  CHECK(cycle.size() == 24);
  CHECK(schedule.due(GlobalStep(0)).empty());
}

TEST_CASE("every fragment is due once an interval, at its offset") {
  const auto [fragments, interval] =
      GENERATE(table<std::int64_t, std::int64_t>({{1, 1}, {1, 100}, {24, 96}, {2, 6}, {7, 7}}));
  CAPTURE(fragments, interval);
  const Schedule schedule = Schedule::create(fragments, interval).value();
  std::vector<GlobalStep> last(static_cast<std::size_t>(fragments), GlobalStep(0));
  for (std::int64_t t = 1; t <= 3 * interval; ++t) {
    for (const FragmentId p : schedule.due(GlobalStep(t))) {
      auto& previous = last[static_cast<std::size_t>(p.value)];
      CHECK(t % interval == schedule.offset(p));
      CHECK(schedule.previous(p, GlobalStep(t)) == previous);
      CHECK(schedule.next(p, previous) == GlobalStep(t));
      if (previous.value > 0) CHECK(t - previous.value == interval);
      previous = GlobalStep(t);
    }
  }
  for (const GlobalStep step : last) CHECK(step.value > 2 * interval - 1);
}

TEST_CASE("fragments must divide the interval") {
  for (const auto& [fragments, interval] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {3, 10}, {4, 2}, {0, 4}, {-1, 4}, {1, 0}}) {
    CAPTURE(fragments, interval);
    CHECK_FALSE(Schedule::create(fragments, interval).has_value());
  }
}
