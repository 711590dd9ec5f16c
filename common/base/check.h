#pragma once
// ARCH_CHECK marks a bug of ours: always on, prints, aborts. Never on input from a peer or a user.
#include <sstream>
#include <string>

namespace archipelago {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);
}

#define ARCH_CHECK(cond, ...)                                                       \
  do {                                                                              \
    if (!(cond)) [[unlikely]] {                                                     \
      std::ostringstream arch_check_out;                                            \
      arch_check_out << "" __VA_ARGS__;                                             \
      ::archipelago::check_failed(__FILE__, __LINE__, #cond, arch_check_out.str()); \
    }                                                                               \
  } while (false)
