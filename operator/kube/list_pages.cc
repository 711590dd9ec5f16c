#include "operator/kube/list_pages.h"

#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/kube/slim.h"

namespace archipelago::op::kube {
namespace {
using nlohmann::json;

constexpr int kStarts = 3;
constexpr int kSmallestPage = 4;

// The items of one page; the token of the next one ("" : it was the last).
Result<std::string> take_page(Kind kind, json page, bool slim, const ListHooks& hooks,
                              ObjectList& out) {
  const std::string version = string_at(page, {"metadata", "resourceVersion"});
  if (version.empty())
    return fail(ErrorKind::kCorrupt,
                "list of " + std::string(plural(kind)) + ": the answer has no resourceVersion");
  // All pages share one; should they not, a watch from the first misses nothing.
  if (out.resource_version.empty()) out.resource_version = version;
  if (const auto items = page.find("items"); items != page.end() && items->is_array()) {
    for (json& item : *items) {
      auto object = take_object(kind, std::move(item), slim);
      if (object)
        out.items.push_back(std::move(*object));
      else
        hooks.skipped(object.error().message);
    }
  }
  return string_at(page, {"metadata", "continue"});
}

Result<ObjectList> list_once(Kind kind, const std::string& name_space, const std::string& selector,
                             bool slim, const ListHooks& hooks, int limit) {
  ObjectList out;
  ListPage page{selector, "", limit};
  do {
    ARCH_TRY(json answer, hooks.call(list(kind, name_space, page)));
    ARCH_TRY(page.continue_token, take_page(kind, std::move(answer), slim, hooks, out));
  } while (!page.continue_token.empty());
  return out;
}
}  // namespace

Result<ObjectList> list_pages(Kind kind, const std::string& name_space,
                              const std::string& label_selector, bool slim,
                              const ListHooks& hooks) {
  int limit = kListLimit;
  for (int start = 1;;) {
    auto out = list_once(kind, name_space, label_selector, slim, hooks, limit);
    if (out) return out;
    const ErrorKind error = out.error().kind;
    if (error == ErrorKind::kTooLarge && limit > kSmallestPage) {
      limit /= 5;
    } else if (error == ErrorKind::kFenced && start < kStarts) {
      if (++start == kStarts) limit = 0;  // one page can't expire
    } else {
      return out;
    }
  }
}

}  // namespace archipelago::op::kube
