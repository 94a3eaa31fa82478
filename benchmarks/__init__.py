"""Speed of the environments and of the training loop; one command per figure, never a timed test.

``python -m benchmarks.run`` measures everything in ``registry.py`` beside the peers that ``python -m benchmarks.peers
install`` has installed, and writes ``RESULTS.md``. ``single``, ``vector``, ``generation``, ``solver``, ``oracle`` and
``startup`` measure our side and run alone too; ``training`` shows where the time of a training iteration goes.
"""
