-module(erlmcp_httpd_http1_request).
-moduledoc """
What the head of a plain request comes to, on its connection: whatever is found out of itself
(`m:erlmcp_httpd_route`), or else a request for the stream handlers.

Internal.
""".

-export([common/5, new/4]).

-export_type([asked/0]).

-type asked() :: erlmcp_httpd_route:ready() | map().

-doc "What all requests of a connection have in common: the calling process's.".
-spec common(ranch:ref(), {Peer, Sock}, Scheme :: binary(), Certificate, Path :: binary()) ->
    map() when
    Peer :: {inet:ip_address(), inet:port_number()},
    Sock :: {inet:ip_address(), inet:port_number()},
    Certificate :: public_key:der_encoded() | undefined.
common(Ref, {Peer, Sock}, Scheme, Certificate, Path) ->
    %% erlmcp_alone: it is served before the next one is looked at
    #{ref => Ref, pid => self(), peer => Peer, sock => Sock, erlmcp_alone => true,
      cert => Certificate, method => ~"POST", scheme => Scheme, path => Path, qs => <<>>,
      version => 'HTTP/1.1'}.

-doc "What a head comes to that was read, of a stream.".
-spec new(cowboy_stream:streamid(), erlmcp_httpd_http1_head:head(), Common :: map(),
          cowboy:opts()) -> asked().
new(Id, #{headers := Headers, host := Host, port := Port, length := Length}, Common, Options) ->
    Request = Common#{streamid => Id, headers => Headers, host => Host, port => port(Port, Common),
                      has_body => Length > 0, body_length => Length},
    case erlmcp_httpd_route:new(Request, Options) of
        none -> Request;
        Ready -> Ready
    end.

port(undefined, #{scheme := ~"http"}) -> 80;
port(undefined, #{scheme := ~"https"}) -> 443;
port(Port, _) -> Port.
