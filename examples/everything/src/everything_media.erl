-module(everything_media).
-moduledoc "The smallest image and the smallest sound, as bytes.".

-export([png/0, wav/0]).

-doc "Returns a PNG image of one pixel.".
-spec png() -> binary().
png() ->
    base64:decode(~"""
        iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5E
        rkJggg==
        """).

-doc "Returns a WAV file: mono, 8 kHz, 16 bits, no samples.".
-spec wav() -> binary().
wav() ->
    base64:decode(~"UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=").
