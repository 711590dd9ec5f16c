#include "common/config/json_text.h"

#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/config/document_builder.h"

namespace archipelago::config {
namespace {

using Json = nlohmann::json;

// nlohmann's own DOM builder lets the last of two equal keys win in silence and nests without end.
class Handler final : public nlohmann::json_sax<Json> {
 public:
  explicit Handler(DocumentBuilder& builder) : builder_(builder) {}

  bool null() override { return builder_.value(nullptr); }
  bool boolean(bool value) override { return builder_.value(value); }
  bool number_integer(std::int64_t value) override { return builder_.value(value); }
  bool number_unsigned(std::uint64_t value) override { return builder_.value(value); }
  bool number_float(double value, const std::string& /*text*/) override {
    return builder_.value(value);
  }
  bool string(std::string& value) override { return builder_.value(std::move(value)); }
  bool binary(Json::binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*size*/) override { return builder_.open(Json::object()); }
  bool end_object() override { return builder_.close(); }
  bool start_array(std::size_t /*size*/) override { return builder_.open(Json::array()); }
  bool end_array() override { return builder_.close(); }
  bool key(std::string& name) override { return builder_.key(std::move(name), 0); }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& ex) override {
    syntax_ = "not JSON near byte " + std::to_string(position) + ": " + strip(ex.what());
    return false;
  }
  [[nodiscard]] const std::string& syntax() const { return syntax_; }

 private:
  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..." without the bracket.
  static std::string strip(std::string_view what) {
    const std::size_t end = what.find("] ");
    std::string out(end == std::string_view::npos ? what : what.substr(end + 2));
    if (out.size() > 200) out.resize(200);
    return Json(out).dump(-1, ' ', true, Json::error_handler_t::replace);
  }

  DocumentBuilder& builder_;
  std::string syntax_;
};

}  // namespace

tl::expected<nlohmann::json, JsonTextErrors> parse_json_text(std::string_view text) {
  DocumentBuilder builder;
  Handler handler(builder);
  const bool parsed = Json::sax_parse(text.begin(), text.end(), &handler);
  if (!handler.syntax().empty()) {
    return tl::unexpected(JsonTextErrors{{{"", "", "", "", handler.syntax(), 0}}, true});
  }
  if (!parsed || !builder.errors().empty())
    return tl::unexpected(JsonTextErrors{builder.take_errors(), false});
  return builder.take();
}

}  // namespace archipelago::config
