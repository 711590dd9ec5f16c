#include "outer-optimizer/routes.h"

#include <algorithm>
#include <charconv>

#include <nlohmann/json.hpp>

#include "common/wire/messages_json.h"
#include "common/wire/tape_file.h"

namespace archipelago::outer {
namespace {

constexpr Duration kRelayWait = std::chrono::seconds(2);
constexpr std::int64_t kMaxEvents = std::int64_t{1} << 48;  // of one incarnation
constexpr Duration kRelayAge = std::chrono::minutes(10);

template <class T>
http::Reply reply_of_result(const Services& services, const Result<T>& result) {
  if (!result) return reply_of(services, result.error());
  return http::Reply::json(wire::encode(*result));
}

http::Reply reply_of_status(const Services& services, const Status& status) {
  return status ? http::Reply::json("{}") : reply_of(services, status.error());
}

Result<Assets> read_assets(const nlohmann::json& body) {
  Assets assets;
  const auto it = body.find("assets");
  if (it == body.end()) return assets;
  if (!it->is_object()) return fail(ErrorKind::kInvalid, "assets: an object of texts is expected");
  for (const auto& [name, text] : it->items()) {
    if (!text.is_string())
      return fail(ErrorKind::kInvalid, "assets." + name.substr(0, 64) + ": a text is expected");
    assets.emplace(name, text.get<std::string>());
  }
  ARCH_TRY_VOID(check_assets(assets));
  return assets;
}

http::Reply put_layout(Services& services, const http::Request& request) {
  const auto digest = diloco::parse_digest(request.args.at(0));
  if (!digest) return reply_of(services, digest.error());
  // A layout's texts are two levels deep; the callback refuses more before it is built.
  const auto shallow = [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    return depth <= 3;
  };
  const auto body = nlohmann::json::parse(request.body, shallow, false);
  if (!body.is_object() || !body.contains("layout") || !body["layout"].is_string()) {
    return reply_of(services,
                    {ErrorKind::kInvalid, "an object with the text 'layout' is expected"});
  }
  auto layout = diloco::Layout::parse_text(body["layout"].get_ref<const std::string&>());
  if (!layout) return reply_of(services, layout.error());
  if (layout->digest() != *digest) {
    return reply_of(services,
                    {ErrorKind::kInvalid, "the layout's digest is not the one in the path"},
                    layout->digest().hex());
  }
  auto assets = read_assets(body);
  if (!assets) return reply_of(services, assets.error());
  return reply_of_status(services,
                         services.engine.put_layout(std::move(*layout), std::move(*assets)));
}

http::Reply check_sender(Services& services, const http::Request& request) {
  const auto who = sender_of(request);
  if (!who) return reply_of(services, who.error());
  if (*who) {
    if (auto known = services.engine.known(**who); !known) return reply_of(services, known.error());
  }
  return http::Reply::json("{}");
}

http::Reply put_relay(Services& services, const http::Request& request, http::BodyReader& body) {
  services.relays.expire(kRelayAge);
  if (auto checked = check_sender(services, request); checked.status != 200) return checked;
  const std::string& id = request.args.at(0);
  const Status put = services.relays.put(id, body);
  if (put && RelaySpool::is_left_behind(id)) {
    services.log.info("inner state kept", {{"id", id}, {"bytes", body.size()}});
    services.engine.inner_state_kept(id);
  }
  return reply_of_status(services, put);
}

http::Reply get_relay(Services& services, const http::Request& request) {
  if (auto checked = check_sender(services, request); checked.status != 200) return checked;
  auto bytes = services.relays.get(request.args.at(0), kRelayWait);
  if (!bytes) return reply_of(services, bytes.error());
  return http::Reply::bytes({std::move(*bytes)});
}

http::Reply post_events(Services& services, const http::Request& request) {
  const auto who = sender_of(request);
  if (!who) return reply_of(services, who.error());
  if (!*who)
    return reply_of(services, {ErrorKind::kInvalid, "X-Archipelago-Unit: the sender is missing"});
  if (auto known = services.engine.known(**who); !known) return reply_of(services, known.error());
  const auto written = take_events(services, **who, std::as_bytes(std::span(request.body)), true);
  if (!written) return reply_of(services, written.error());
  return http::Reply::json(nlohmann::json{{"tape", *written}}.dump());
}

std::uint64_t relay_limit(const Services& services) {
  const auto layout = services.engine.layout();
  if (layout == nullptr) return 0;
  // Two fp32 moments of every element, and what frames them.
  return static_cast<std::uint64_t>(layout->elements) * 8 + wire::kMaxHeaderBytes + (1U << 20);
}

}  // namespace

http::Reply reply_of(const Services& services, const Error& error, std::string_view expected) {
  return http::error_reply(error, expected,
                           "committed " + std::to_string(services.engine.committed().value));
}

Result<std::int64_t> take_events(Services& services, const diloco::UnitKey& who,
                                 std::span<const std::byte> bytes, bool now) {
  ARCH_TRY(const auto record, wire::decode_tape_record(bytes));
  const auto* batch = std::get_if<diloco::tape::Batch>(&record);
  if (batch == nullptr || batch->unit != who.unit || batch->incarnation != who.incarnation ||
      batch->from < 0 || batch->from > kMaxEvents)
    return fail(ErrorKind::kInvalid, "tape: events of " + who.unit + " are expected");
  return services.tape.events(*batch, now);
}

Status check_lineage(Services& services, const http::Request& request) {
  const std::string_view text = request.header("x-archipelago-lineage");
  if (text.empty()) return {};
  std::int64_t lineage = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), lineage);
  if (error != std::errc() || end != text.data() + text.size())
    return fail(ErrorKind::kInvalid, "X-Archipelago-Lineage: a whole number is expected");
  return services.engine.check_lineage(lineage);
}

Result<std::optional<diloco::UnitKey>> sender_of(const http::Request& request) {
  diloco::UnitKey who;
  who.unit = std::string(request.header("x-archipelago-unit"));
  if (who.unit.empty()) return std::optional<diloco::UnitKey>();
  const std::string_view text = request.header("x-archipelago-incarnation");
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), who.incarnation.value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
    return fail(ErrorKind::kInvalid, "X-Archipelago-Incarnation: a whole number is expected");
  }
  who.session = std::string(request.header("x-archipelago-session"));
  return std::optional<diloco::UnitKey>(std::move(who));
}

void add_learner_routes(http::Server& server, Services& s) {
  server.route(
      "POST", "/v1/hello",
      [&s](const http::Request& request) {
        const auto hello = wire::parse_hello(request.body);
        if (!hello) return reply_of(s, hello.error());
        const auto reply = s.engine.hello(*hello);
        s.log.info("hello", {{"unit", hello->who.unit},
                             {"incarnation", hello->who.incarnation.value},
                             {"result", reply ? "ok" : reply.error().message}});
        return reply_of_result(s, reply);
      },
      wire::kMaxMessageBytes);
  server.route(
      "POST", "/v1/progress",
      [&s](const http::Request& request) {
        const auto report = wire::parse_progress(request.body);
        if (!report) return reply_of(s, report.error());
        return reply_of_result(s, s.engine.progress(*report));
      },
      wire::kMaxMessageBytes);
  server.route(
      "POST", "/v1/tape", [&s](const http::Request& request) { return post_events(s, request); },
      wire::kMaxTapeBatch, "application/octet-stream");
  server.route(
      "POST", "/v1/leave",
      [&s](const http::Request& request) {
        const auto who = wire::parse_unit_key(request.body);
        if (!who) return reply_of(s, who.error());
        s.log.info("leave", {{"unit", who->unit}, {"incarnation", who->incarnation.value}});
        const auto wanted = s.engine.leave(*who);
        if (!wanted) return reply_of(s, wanted.error());
        nlohmann::json json = nlohmann::json::object();
        if (!wanted->empty()) json["innerState"] = *wanted;
        return http::Reply::json(json.dump());
      },
      wire::kMaxMessageBytes);
  server.route(
      "PUT", "/v1/settings",
      [&s](const http::Request& request) {
        const auto settings = wire::parse_settings(request.body);
        if (!settings) return reply_of(s, settings.error());
        if (auto put = s.engine.put_settings(*settings); !put) return reply_of(s, put.error());
        return http::Reply::json(wire::encode(*settings));
      },
      wire::kMaxMessageBytes);
  server.route(
      "PUT", "/v1/layout/{}", [&s](const http::Request& request) { return put_layout(s, request); },
      kMaxLayoutBody);
  server.route_upload(
      "PUT", "/v1/recovery/{}", [&s] { return relay_limit(s); },
      [&s](const http::Request& request, http::BodyReader& body) {
        return put_relay(s, request, body);
      });
  server.route("GET", "/v1/recovery/{}",
               [&s](const http::Request& request) { return get_relay(s, request); });
  server.route("GET", "/v1/status",
               [&s](const http::Request&) { return http::Reply::json(*s.engine.status_text()); });
  add_model_routes(server, s.models);
}

void add_admin_routes(http::Server& server, Services& s, const http::Server& learners) {
  // Dead, not busy: a core that merges or waits for a disk still turns over; only a stuck one does
  // not.
  server.route("GET", "/healthz", [&s](const http::Request&) {
    const double idle = to_seconds(s.engine.since_last_turn());
    if (idle < 30) return http::Reply::text("ok\n");
    return http::Reply::text("the core has not turned over for " + std::to_string(idle) + " s\n",
                             503);
  });
  server.route("GET", "/readyz", [&s](const http::Request&) {
    return s.ready ? http::Reply::text("ok\n") : http::Reply::text("not serving\n", 503);
  });
  server.route("GET", "/statusz",
               [&s](const http::Request&) { return http::Reply::json(*s.engine.status_text()); });
  add_model_routes(server, s.models);  // the API server's proxy reads this port alone
  server.route("GET", "/metrics", [&s, &learners](const http::Request&) {
    const http::ServerStats stats = learners.stats();
    std::string text = s.metrics.render();
    const auto add = [&](const char* name, const char* type, std::uint64_t value) {
      text += std::string("# TYPE archipelago_outer_optimizer_") + name + " " + type +
              "\narchipelago_outer_optimizer_" + name + " " + std::to_string(value) + "\n";
    };
    add("http_connections_open", "gauge", stats.open);
    add("http_requests_total", "counter", stats.requests);
    add("http_replies_4xx_total", "counter", stats.replies_4xx);
    add("http_replies_5xx_total", "counter", stats.replies_5xx);
    add("http_timeouts_total", "counter", stats.timeouts);
    add("http_received_bytes_total", "counter", stats.bytes_in);
    add("http_sent_bytes_total", "counter", stats.bytes_out);
    return http::Reply::text(std::move(text));
  });
}

}  // namespace archipelago::outer
