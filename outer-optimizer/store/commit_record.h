#pragma once
// The heads of journal records (journal.h): what replay needs beside the merged gradient. The rules
// travel with the record, so a replay under changed settings still gives the bits of the past.
#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "outer-optimizer/store/fragment_store.h"

namespace archipelago::outer {

struct CommitHead {
  GlobalStep t;
  FragmentId fragment;
  bool update = true;  // false: nobody's contribution counted, no tensor follows
  OuterRules rules;    // `radial` is not part of it: the gradient is already merged
  std::string meta;
  std::string core_state;
};
[[nodiscard]] std::string encode_commit(const CommitHead& head);
[[nodiscard]] Result<CommitHead> decode_commit(std::string_view bytes);

struct FinalHead {
  GlobalStep version;
  std::string core_state;
};
[[nodiscard]] std::string encode_final(const FinalHead& head);
[[nodiscard]] Result<FinalHead> decode_final(std::string_view bytes);

}  // namespace archipelago::outer
