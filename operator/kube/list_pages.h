#pragma once
// A list in pages. A continue token that has expired (410) starts it over, and the last time asks
// for everything at once; a page that is too large for us asks for smaller ones.
#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "operator/cluster/cluster.h"
#include "operator/kube/requests.h"

namespace archipelago::op::kube {

struct ListHooks {
  std::function<Result<nlohmann::json>(const Request&)> call;
  std::function<void(const std::string& why)> skipped;  // an item that can't be read
};
[[nodiscard]] Result<ObjectList> list_pages(Kind kind, const std::string& name_space,
                                            const std::string& label_selector, bool slim,
                                            const ListHooks& hooks);

}  // namespace archipelago::op::kube
