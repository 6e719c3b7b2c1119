"""The clients users hold: service, training, sampling, REST and admin."""
