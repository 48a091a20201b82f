module erlmcp-porcupine

go 1.25.0

tool erlmcp-porcupine

require github.com/anishathalye/porcupine v1.3.1
