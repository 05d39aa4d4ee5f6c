"""Dumps the request. Disabled: it shows what travellers write."""


def before_model_callback(callback_context, llm_request):
    print(llm_request.model_dump_json())
