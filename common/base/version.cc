#include "common/base/version.h"

namespace archipelago {

const std::string& version() {
  static const std::string text = ARCHIPELAGO_VERSION;
  return text;
}

}  // namespace archipelago
