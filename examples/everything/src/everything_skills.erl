-module(everything_skills).
-moduledoc "The skills of the everything server: one from a folder and one that is written here.".

-export([sources/0]).

-doc "Returns the skills.".
-spec sources() -> [erlmcp:skill()].
sources() ->
    [#{path => filename:join([code:priv_dir(everything), "skills", "pdf-processing"])},
     #{name => ~"try-everything",
       description => ~"Shows what this server can do. Use when asked for a tour of it.",
       prefix => ~"tours",
       body => ~"""
           # Try everything

           Call `echo` with a text, then `add` with two numbers, then `clock`, and tell the user
           what each gave. [questions.md](questions.md) has what people ask.
           """,
       files => #{~"questions.md" => ~"# Questions\n\nIs it a real server? It is.\n"}}].
