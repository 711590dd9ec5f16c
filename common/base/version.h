#pragma once
// The version of this build: project(VERSION) of the top CMakeLists.txt. What names it elsewhere
// (manifests, documents) is held to it by tests/rules/check_version.py.
#include <string>

namespace archipelago {

[[nodiscard]] const std::string& version();  // "0.1.0"

}  // namespace archipelago
