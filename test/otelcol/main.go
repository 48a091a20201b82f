// The OpenTelemetry Collector with the components of ops/otelcol.yml: the receiver of OTLP, and the
// exporter that prints what it gets.
package main

import (
	"log"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/confmap/provider/yamlprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/debugexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

func factories() (otelcol.Factories, error) {
	in, out := otlpreceiver.NewFactory(), debugexporter.NewFactory()
	return otelcol.Factories{
		Receivers: map[component.Type]receiver.Factory{in.Type(): in},
		Exporters: map[component.Type]exporter.Factory{out.Type(): out},
		Telemetry: otelconftelemetry.NewFactory(),
	}, nil
}

func main() {
	command := otelcol.NewCommand(otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "otelcol"},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{
			ResolverSettings: confmap.ResolverSettings{
				DefaultScheme: "yaml",
				ProviderFactories: []confmap.ProviderFactory{
					fileprovider.NewFactory(), yamlprovider.NewFactory(),
				},
			},
		},
	})
	if err := command.Execute(); err != nil {
		log.Fatal(err)
	}
}
